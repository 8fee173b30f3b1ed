"""Many hosts in few lines: which of them stand together as values, the lines as a golden file."""

from __future__ import annotations

import dataclasses

from outfitter.api.rejection import Rejection
from outfitter.api.rejection_text import Wording
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.explain import grouping
from outfitter.scheduling.placement import HostRejection, Waiting
from tests import golden
from tests.rejected import Code, no
from tests.scheduling.builders import PF, VF, claim, dev, held, no_match, no_vf, node, page, part, placed, pod, too_few

Hosts = list[tuple[str, HostRejection]]


def many() -> Hosts:
    """Five hosts with VFs, four of which are full and one of which is cordoned, and 35 with PFs."""
    names = [f"n{number}" for number in range(40)]
    slices = [part(name, dev("x", **VF if number < 5 else PF)) for number, name in enumerate(names)]
    index = DeviceIndex.of(slices, [page(name, ("x", "train")) for name in names[:4]],
                           [node(name, cordoned=name == "n4") for name in names])
    found = placed(pod("c"), [claim("c")], index, every_host=True)
    assert isinstance(found, Waiting)
    return sorted(found.hosts, key=lambda one: int(one[0][1:]))


def rejected(far: int, *rejections: Rejection) -> HostRejection:
    return HostRejection(rejections, (far,))


MEMORY = no(Code.INSUFFICIENT_RESOURCE, resource="memory", wanted=4 << 30, free=1 << 30, total=8 << 30)
LESS = MEMORY.with_detail(free=0)
VARIED: Hosts = [
    ("a", rejected(3, MEMORY)), ("b", rejected(3, LESS)), ("c", rejected(3, no(Code.NODE_CORDONED))),
    ("d", rejected(3, no(Code.NODE_CORDONED), MEMORY)), ("e", rejected(3, no(Code.NODE_TAINTED, taint="x:NoSchedule"))),
    ("f", rejected(3, no(Code.NODE_NAME, node="z"))), ("g", rejected(0, no(Code.FITS_NOW)))]
ONE = [("n", rejected(2, no_match(14)))]
OBSTACLES = [*(no_vf(f"d{number}") for number in range(5)), held("x"), no(Code.POOL_UPDATING, pool="d/p"),
             *(held(f"y{number}", by=f"c{number}") for number in range(12))]


def test_words() -> None:
    hosts = many()
    golden.check(__file__, "grouping", {
        "short": grouping.short(hosts), "long": grouping.long(hosts, Wording("here")), "varied": grouping.short(VARIED),
        "one host": grouping.short(ONE), "two amounts": [group.text(Wording()) for group in grouping.groups(VARIED[:2])],
        "devices": grouping.devices(OBSTACLES), "nothing matches": grouping.short(hosts[5:]),
        "headline, none is free": grouping.headline(hosts), "headline, nothing matches": grouping.headline(hosts[5:]),
        "headline, the host": grouping.headline(VARIED[:5]),
        "names": [grouping.few("abcdef"[:count]) for count in (1, 3, 4, 6)]})


def test_hosts_that_differ_in_amounts_alone_stand_together() -> None:
    found = grouping.groups(VARIED)
    assert [(group.hosts, group.alike) for group in found] == [
        (("g",), True), (("a", "b"), False), (("c",), True), (("d",), True), (("e",), True), (("f",), True)]


def test_equal_text_of_different_codes_is_not_grouped() -> None:
    hosts: Hosts = [("a", rejected(1, held("x", "a"))), ("b", rejected(1, held("x", "a", by="other"))),
                    ("c", rejected(1, dataclasses.replace(held("x", "a"), since="2026-02-02T00:00:00Z")))]
    assert [group.hosts for group in grouping.groups(hosts)] == [("a", "c"), ("b",)]


def test_hosts_stand_together_whatever_label_they_have() -> None:
    hosts: Hosts = [(f"n{number}", rejected(3, no(Code.NODE_SELECTOR, label="hostname", wanted="x", has=f"n{number}")))
                    for number in range(9)]
    [group] = grouping.groups(hosts)
    assert (len(group.hosts), group.alike) == (9, False)


def test_the_nearest_device_is_the_one_that_passes_most() -> None:
    [(host, near)] = grouping.nearest_devices(many()[5:])
    assert (host, near.code, near.device) == ("n5", Code.SELECTOR_FALSE, no_vf("x", "n5").device)
    assert grouping.nearest_devices(many()) == [], "others have what is asked for"


def test_many_names() -> None:
    assert grouping.few("abcd") == "a, b, c, d"
    assert grouping.few("abcdef").startswith("a, b, c")


def test_the_nearest_hosts_come_first() -> None:
    hosts: Hosts = [
        ("b", rejected(2, no_match(1))),
        ("a10", rejected(1, too_few(1, 1, 0))),
        ("a9", rejected(1, too_few(1, 1, 0))),
    ]
    assert [host for host, _ in grouping.by_distance(hosts)] == ["a9", "a10", "b"]
