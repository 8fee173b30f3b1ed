"""Virtual functions and mediated devices that a configuration asks for: made at the start, the same ones each time, and nothing
of any other owner's is changed."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.errors import Invalid
from outfitter.inventory import config, provisioning, scan
from outfitter.inventory.config import HostSettings
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.simulated import Simulated
from outfitter.node.devices import mdev, sriov
from outfitter.node.simulation.kernel import SimulatedKernel
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.node.audited_hosts import Bench, foreign
from tests.node.prepare_host import NIC, Hand, captured, kernel

PF = "0000:3b:00.0"
FOUR = "sriov: [{address: 0000:3b:00.0, count: 4}]"
TWO = "sriov: [{address: 0000:3b:00.0, count: 2}]"
LARGE = "mdev: [{type: mbochs-large, count: 2}]"


def settings(text: str) -> HostSettings:
    return config.parse(text).default


def virtual(hand: Hand, text: str, used: tuple[str, ...] = ()) -> list[str]:
    return list(sriov.provision(hand.host_env, settings(text).sriov, scan.scan(hand.kernel).devices, used))


def mediated(hand: Hand, text: str, used: tuple[str, ...] = ()) -> list[str]:
    return list(mdev.provision(hand.host_env, settings(text).mdev, scan.scan(hand.kernel), used))


def count(hand: Hand) -> int:
    return sum(device.kind.is_vf for device in scan.scan(hand.kernel).devices)


@dataclass(frozen=True)
class Case:
    have: int
    text: str
    left: int
    says: str = ""
    used: tuple[str, ...] = ()
    ours: dict[str, int] = field(default_factory=dict)
    make: Callable[[SimulatedKernel], None] = lambda _: None


CASES = {
    "none are there": Case(0, FOUR, 4),
    "by ids": Case(0, "sriov: [{vendor_id: 8086, product_id: 1592, count: 2}]", 2),
    "another card is meant": Case(0, "sriov: [{vendor_id: 8086, product_id: 1593, count: 2}]", 0),
    "the first entry that fits counts": Case(0, "sriov: [{address: 0000:3b:00.0, count: 3}, {vendor_id: 8086, count: 5}]", 3),
    "as many as asked for are there": Case(4, FOUR, 4),
    "created by another, with another number": Case(
        2, FOUR, 2, "has 2 VFs, and 4 are configured: they were not created by outfitter"),
    "and may be overruled": Case(2, "sriov: [{address: 0000:3b:00.0, count: 4, replace: yes}]", 4),
    "we made another number": Case(2, FOUR, 4, ours={PF: 2}),
    "created by another after ours": Case(2, FOUR, 2, "they were not created by outfitter", ours={PF: 3}),
    "one is in use": Case(2, FOUR, 2, "it is left as it is while 0000:3b:01.1 is in use", ("0000:3b:01.1",), {PF: 2}),
    "in use goes before overruling": Case(2, "sriov: [{address: 0000:3b:00.0, count: 0, replace: yes}]", 2, "in use",
                                          ("0000:3b:01.1",)),
    "the card itself is in use": Case(0, FOUR, 0, f"4 are configured: it is left as it is while {PF} is in use", (PF,)),
    "more than the card can": Case(0, "sriov: [{address: 0000:3b:00.0, count: 9}]", 0, "it can have 8 at most"),
    "the card refuses": Case(0, FOUR, 0, "No space left", make=lambda k: k.fail("sriov_numvfs", errno.ENOSPC)),
}


@pytest.mark.parametrize("name", CASES)
def test_virtual_functions(name: str) -> None:
    case = CASES[name]
    hand = Hand(kernel(NIC % case.have))
    hand.host_env.checkpoint.set_vfs(case.ours)
    case.make(hand.kernel)
    said = virtual(hand, case.text, case.used)
    assert count(hand) == case.left
    assert [case.says in sentence for sentence in said] == ([True] if case.says else [])
    hand.host_env = hand.fresh()
    assert virtual(hand, case.text, case.used) == said  # and so it stays
    assert count(hand) == case.left


def test_a_number_that_could_not_be_changed_is_still_ours() -> None:
    hand = Hand(kernel(NIC % 0))
    assert virtual(hand, FOUR) == []
    hand.kernel.fail("sriov_numvfs", errno.EBUSY, 1)
    [busy] = virtual(hand, TWO)
    assert "Device or resource busy" in busy
    hand.host_env = hand.fresh()
    assert virtual(hand, TWO) == []
    assert count(hand) == 2


class Dies(BaseException):
    """The process ends in the middle of it."""


def dying(write: Callable[[str, str], None], left: list[int]) -> Callable[[str, str], None]:
    """So many half writes are left: one that begins with none is not done, one with a half is written but not acknowledged."""
    def wrapped(path: str, text: str) -> None:
        left[0] -= 2
        if left[0] == -2:
            raise Dies
        write(path, text)
        if left[0] == -1:
            raise Dies

    return wrapped


@pytest.mark.parametrize(("first", "then"), [(0, 4), (4, 2), (2, 4), (4, 0)])
def test_a_crash_at_any_write_does_not_make_our_vfs_foreign(first: int, then: int) -> None:
    text = "sriov: [{address: 0000:3b:00.0, count: %d}]"
    for point in range(20):
        hand = Hand(kernel(NIC % 0))
        assert virtual(hand, text % first) == []
        left = [point]
        with pytest.MonkeyPatch.context() as patch:
            for where in (hand.kernel, hand.state):
                patch.setattr(where, "write", dying(where.write, left))
            with contextlib.suppress(Dies):
                virtual(hand, text % then)
        hand.host_env = hand.fresh()
        assert virtual(hand, text % then) == []
        assert (count(hand), hand.host_env.checkpoint.vfs.get(PF)) == (then, then)
        if left[0] >= 0:
            break
    assert point >= 4


def test_mediated_devices_are_the_same_after_every_start() -> None:
    hand = Hand(captured("qemu-host.json"))
    before = {one.uuid for one in scan.scan(hand.kernel).mdevs}
    assert mediated(hand, LARGE) == []
    made = {one.uuid for one in scan.scan(hand.kernel).mdevs} - before
    assert made == {provisioning.mdev_uuid("a", "mbochs", "mbochs-large", number) for number in range(2)}
    writes = len(hand.kernel.writes)  # type: ignore[attr-defined]
    hand.host_env = hand.fresh()
    assert mediated(hand, LARGE) == []
    assert len(hand.kernel.writes) == writes  # type: ignore[attr-defined]
    one, two = sorted(made)
    said = mediated(hand, "{}", used=(one,))
    assert said == [f"mediated device {one} is no longer configured and stays while it is in use"]
    assert {each.uuid for each in scan.scan(hand.kernel).mdevs} == before | {one}
    hand.host_env = hand.fresh()
    assert mediated(hand, "{}") == []
    assert {each.uuid for each in scan.scan(hand.kernel).mdevs} == before  # and no others
    assert hand.host_env.checkpoint.made == ()
    assert two not in before


def test_mediated_devices_that_cannot_be_made() -> None:
    hand = Hand(captured("qemu-host.json"))
    [full] = mediated(hand, "mdev: [{type: mbochs-large, count: 4}]")
    assert "(mbochs-large of mbochs) could not be created: writing to " in full
    assert full.endswith("No space left on device")
    assert len(scan.scan(hand.kernel).mdevs) == 3 + 3
    assert "mediated devices of type nvidia-1 cannot be created: no parent on this host has that type" in mediated(
        hand, "mdev: [{type: nvidia-1, count: 1}]")
    assert "mediated devices of type mtty-1 cannot be created: mdpy does not have that type" in mediated(
        hand, "mdev: [{type: mtty-1, count: 1, parent: mdpy}]")


VGPU = """
hosts:
- name: a
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: 0, total: 8, product: 1889}}
  - address: 0000:65:00.0
    vendor: 10de
    product: '2235'
    class: 030200
    driver: nvidia
    mdevTypes: [{id: nvidia-232, description: framebuffer=2048M, available: 2}]
"""


async def test_what_is_made_is_offered(bench: Bench) -> None:
    """Through the product: a start makes them and publishes them; one that does not ask for them takes back what is free."""
    [played] = hosts_file.parse(VGPU).hosts
    text = f"device_spec: [{{product_id: '1889'}}, {{vendor_id: 10de}}]\n{FOUR}\nmdev: [{{type: nvidia-232, count: 2}}]"
    host = app.simulated_hosts([played], config=config.parse(text))[0]

    async def start(one: object) -> set[str]:
        async with app.embedded(hosts=[one], clock=ManualClock(), names=IdGenerator(random.Random(1))) as product:  # type: ignore[list-item]
            return set(await Bench(product, ManualClock()).devices())

    vgpus = {f"mdev-{provisioning.mdev_uuid('a', '0000:65:00.0', 'nvidia-232', number)}" for number in range(2)}
    assert await start(host) == {f"pci-0000-3b-00-0-vf{number}" for number in range(4)} | vgpus
    machine = Simulated()
    await machine.start(foreign("theirs"))
    bare = replace(host, settings=config.parse("device_spec: [{vendor_id: 10de}]").default, hypervisor=machine)
    assert await start(bare) == {"pci-0000-65-00-0"}


async def test_what_cannot_be_made_is_a_warning_of_the_host() -> None:
    [played] = hosts_file.parse(VGPU).hosts
    text = "device_spec: []\nsriov: [{address: 0000:3b:00.0, count: 9}]"
    async with app.embedded(hosts=app.simulated_hosts([played], config=config.parse(text)), clock=ManualClock()) as product:
        said = await product.store.get(kinds.HOST_INVENTORY, "a")
    assert said["spec"]["warnings"] == [
        "0000:3b:00.0 has 0 VFs, and 9 are configured: it can have 8 at most"]


MISTAKES = {
    "sriov: [{count: 4}]": "sriov[0].address: is missing; name the PF",
    "sriov: [{address: 3b:00.0, count: 4}]": "is not a full PCI address",
    "sriov: [{address: 0000:3b:00.0}]": "sriov[0].count: is missing",
    "sriov: [{address: 0000:3b:00.0, count: 70000}]": "is not a number from 0 to 65535",
    "sriov: [{address: 0000:3b:00.0, count: 4, replace: maybe}]": "'maybe' is neither true nor false",
    "sriov: {address: 0000:3b:00.0}": "sriov: must be a list",
    "sriov:": "sriov: is empty; for none write []",
    "mdev: [{count: 4}]": "mdev[0].type: is missing",
    "mdev: [{type: nvidia-1, count: 4, host: a}]": "mdev[0].host",
    "mdev: [{type: a b, count: 4}]": "'a b' is not a type id",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        config.parse(text)
    assert MISTAKES[text] in caught.value.message


def test_host_overrides_the_common_setting() -> None:
    found = config.parse(f"{FOUR}\nhosts: {{b: {{sriov: []}}, c: {{mdev: [{{type: t, count: 1}}]}}}}")
    assert [len(found.for_host(name).sriov) for name in ("a", "b", "c")] == [1, 0, 1]
    assert len(found.for_host("c").mdev) == 1
