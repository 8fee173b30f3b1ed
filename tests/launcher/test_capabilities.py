"""Which hosts can run VMs on their own processors, by what libvirt says of them."""

from __future__ import annotations

import pytest

from outfitter.launcher import capabilities

HOST = """<capabilities><host><cpu><arch>{arch}</arch>{cpu}</cpu></host>
  <guest><arch name='i686'><domain type='qemu'/></arch></guest>
  <guest><arch name='{guest}'><domain type='qemu'/>{more}</arch></guest></capabilities>"""
KVM, MODEL = "<domain type='kvm'/>", "<model>EPYC</model>"

CASES = {
    "AMD": ("x86_64", "x86_64", KVM, ["aes", "svm"], True),
    "Intel": ("x86_64", "x86_64", KVM, ["vmx", "aes"], True),
    "a kernel that opens /dev/kvm without either": ("x86_64", "x86_64", KVM, ["aes", "hypervisor"], False),
    "/dev/kvm cannot be opened": ("x86_64", "x86_64", "", ["svm"], False),
    "only for another architecture": ("x86_64", "aarch64", KVM, ["svm"], False),
    "ARM has no such feature": ("aarch64", "aarch64", KVM, [], True),
}


@pytest.mark.parametrize("name", CASES)
def test_kvm(name: str) -> None:
    arch, guest, more, features, expected = CASES[name]
    assert capabilities.kvm(HOST.format(arch=arch, guest=guest, more=more, cpu=MODEL), features) is expected


def test_a_processor_that_libvirt_knows_can_be_asked_about() -> None:
    known = HOST.format(arch="x86_64", guest="x86_64", more=KVM, cpu=MODEL)
    assert capabilities.cpu(known) == f"<cpu><arch>x86_64</arch>{MODEL}</cpu>"
    assert capabilities.cpu(known.replace(MODEL, "")) is None
    assert capabilities.features(
        "<cpu><model>EPYC</model><feature policy='require' name='svm'/><feature name='aes'/></cpu>"
    ) == ["svm", "aes"]
