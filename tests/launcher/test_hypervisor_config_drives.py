"""The image of a VM's config drive: there while the VM is, whoever is killed in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfitter.api.hypervisor import Drive
from outfitter.launcher import iso_image as drives
from tests.hardware import kernel
from tests.launcher.hypervisor_hosts import OTHER, UID, Lab, News, Played, Real, drives_of, needs_libvirt


async def test_config_drive_is_created_and_removed_with_its_domain(lab: Lab) -> None:
    first = lab.hypervisor()
    assert (await first.abilities()).drives == str(lab.drives)
    await lab.up(first, lab.machine(seed="#one"))
    [(name, made)] = drives_of(lab).items()
    assert name == f"{UID}.iso"
    assert b"#one" in made
    await first.start(lab.machine(seed="#two"))
    assert drives_of(lab) == {name: made}, "what runs keeps the drive that it has"
    await first.close()
    second = lab.hypervisor()
    assert list(await second.domains()) == [UID]
    assert drives_of(lab) == {name: made}
    news = News(second)
    lab.kill(second, UID)
    while not await second.ended():
        await news.of(UID)
    assert drives_of(lab) == {name: made}, "it is not put away yet"
    await second.start(lab.machine(seed="#three"))
    assert b"#three" in drives_of(lab)[name], "a new start reports what is true now"
    assert await second.stop(UID) is None
    assert drives_of(lab) == {}
    await second.close()


async def test_image_of_a_failed_start_is_removed(tmp_path: Path) -> None:
    """A process that was killed in between: once with half an image, once before the domain was written."""
    lab = Played(tmp_path)
    await lab.hypervisor().start(lab.machine(seed="#one"))
    for name in (f".{UID}.iso.new", f"{OTHER}.iso"):
        (tmp_path / name).write_bytes(b"half")
    assert list(await lab.hypervisor().domains()) == [UID]
    assert list(drives_of(lab)) == [f"{UID}.iso"]


@pytest.mark.libvirt
@needs_libvirt
async def test_qemu_has_the_drive(real: Real) -> None:
    hypervisor = real.hypervisor()
    await hypervisor.start(real.machine(seed="#one"))
    image = real.drives / f"{UID}.iso"
    assert str(image) in kernel.opened(real.daemon.qemu("here_blue"))
    await hypervisor.stop(UID)
    assert not image.exists()
    await hypervisor.close()


class Killed(BaseException):
    """As if the process had ended there."""


@pytest.mark.libvirt
@needs_libvirt
async def test_an_image_belongs_to_a_domain_whenever_its_maker_is_killed(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    write = drives.write

    def killed(drive: Drive) -> None:
        write(drive)
        raise Killed

    hypervisor = real.hypervisor()
    with monkeypatch.context() as patched:
        patched.setattr(drives, "write", killed)
        with pytest.raises(Killed):
            await hypervisor.start(real.machine(seed="#one"))
    await hypervisor.close()
    assert list(drives_of(real)) == [f"{UID}.iso"]
    again = real.hypervisor()
    assert list(await again.ended()) == [UID], "so whoever comes later finds it"
    await again.stop(UID)
    assert (await again.ended(), drives_of(real)) == ({}, {})
    await again.close()
