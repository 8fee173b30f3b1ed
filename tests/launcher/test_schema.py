"""VMs of every kind against libvirt's schema, and as many refusals as are needed: whatever is built is a domain."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from outfitter.api.hypervisor import Domain
from outfitter.errors import StartFailed
from tests.launcher.domain_cases import Situation
from tests.launcher.random_vmis import machines
from tests.launcher.schema import needed, wrong


@needed
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(machines())
def test_whatever_is_built_is_a_domain(situation: Situation) -> None:
    try:
        built = situation.build()
    except StartFailed as error:
        said = error.message
    else:
        _check(built)
        return
    assert "spec." in said or "status." in said, "it names the field"


def _check(built: Domain) -> None:
    assert wrong(built.xml) == "", built.xml
    aliases = [part.split('"')[0] for part in built.xml.split('<alias name="')[1:]]
    assert len(set(aliases)) == len(aliases)
