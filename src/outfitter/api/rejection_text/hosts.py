"""Of a host: its state, what it offers, its pools and its NUMA cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text.rendering import NAMED, Sentence, Wording, amount_text, held_text, message, plain

_Code = RejectionCode
HOST_NAMES = ("kubernetes.io/hostname", "metadata.name")


def _node_not_ready(rejection: Rejection, wording: Wording) -> str:
    return f"it is not ready: {rejection['message']}"


def _node_pressure(rejection: Rejection, wording: Wording) -> str:
    return f"it is short of {rejection['short']}: {rejection['message']}"


def _node_selector(rejection: Rejection, wording: Wording) -> str:
    label = rejection["label"]
    return f"nodeSelector wants {label}={rejection['wanted']}{_it_has(label, rejection.detail.get('has'))}"


def _node_affinity(rejection: Rejection, wording: Wording) -> str:
    """Of each term the first requirement that does not hold; any term would do."""
    terms = [_affinity_term(term) for term in rejection["terms"]]
    if not terms:
        return "nodeAffinity has no nodeSelectorTerms, so no node matches"
    terms = list(dict.fromkeys(terms))
    more = f", or one of {len(terms) - NAMED} more" if len(terms) > NAMED else ""
    return f"nodeAffinity wants {', or '.join(terms[:NAMED])}{more}"


def _affinity_term(term: Mapping[str, Any]) -> str:
    if not term:
        return "nothing, which no node has (an empty term)"
    name, values = term["key"], ", ".join(term["values"])
    match term["operator"]:
        case "Exists":
            wanted = f"{name} to be there"
        case "DoesNotExist":
            wanted = f"{name} not to be there"
        case "In":
            wanted = f"{name} in ({values})"
        case "NotIn":
            wanted = f"{name} not in ({values})"
        case operator:
            wanted = f"{name} {'>' if operator == 'Gt' else '<'} {values}"
    return f"{wanted}{_it_has(name, term.get('has'))}"


def _it_has(key: str, value: str | None) -> str:
    """Not where the host's name is asked for, with which the sentence begins already."""
    if value is not None and key in HOST_NAMES:
        return ""
    return f"; it has {'no such label' if value is None else value}"


def _insufficient(rejection: Rejection, wording: Wording) -> str:
    name = rejection["resource"]
    return (f"{amount_text(name, rejection['free'])} of {amount_text(name, rejection['total'])} {name} free, "
            f"{amount_text(name, rejection['wanted'], up=True)} wanted")


def _not_offered(rejection: Rejection, wording: Wording) -> str:
    name = rejection["resource"]
    return f"it offers no {name}, {amount_text(name, rejection['wanted'], up=True)} wanted"


def _claim_elsewhere(rejection: Rejection, wording: Wording) -> str:
    return f"the devices that the pod's claims hold are on {', '.join(rejection['hosts']) or 'no common host'}"


def _plugin_failed(rejection: Rejection, wording: Wording) -> str:
    return f"plug-in {rejection['plugin']} failed ({rejection['error']}), so the pod may not run here"


def _pool_updating(rejection: Rejection, wording: Wording) -> str:
    if where := rejection.detail.get("where"):
        return f"{where}: asks for all devices, but resource pool {rejection['pool']} is currently being updated"
    return f"pool {rejection['pool']} is being updated: not all of its slices are published"


def _pool_invalid(rejection: Rejection, wording: Wording) -> str:
    if where := rejection.detail.get("where"):
        return (f"{where}: asks for all devices, but resource pool {rejection['pool']} is currently invalid "
                f"({rejection['message']})")
    return f"resource pool {rejection['pool']} is invalid: {rejection['message']}"


def _cells(rejection: Rejection) -> str:
    cells: Sequence[tuple[int, int]] = list(rejection["cells"].items())
    return "; ".join(f"cell {cell} has {free} free CPUs" for cell, free in cells) or "its cells are not known"


def _numa_cpus(rejection: Rejection, wording: Wording) -> str:
    parts, detail = " and ".join(map(str, rejection["parts"])), rejection.detail
    return (f"the guest needs {parts} {'dedicated ' if detail['pinned'] else ''}CPUs on {detail['wanted']} of its "
            f"{len(detail['cells'])} NUMA cells: {_cells(rejection)}")


def _numa_far(rejection: Rejection, wording: Wording) -> str:
    if rejection.device is not None:
        numa = rejection["numa"]
        where = f"is on {'an unknown NUMA cell' if numa is None else f'NUMA cell {numa}'}"
        if rejection.holder is None:
            return where
        return f"{where}, too far from the free CPUs, and {held_text(rejection, wording)}"
    return (f"no NUMA cell has both the CPUs and devices that are near enough ({', '.join(rejection['policies'])}): "
            f"{_cells(rejection)}")


SENTENCES: Mapping[RejectionCode, Sentence] = {
    _Code.NODE_NAME: lambda rejection, wording: f"the pod is for {rejection['node']} alone (spec.nodeName)",
    _Code.NODE_CORDONED: plain("it takes no new pods (cordoned)"),
    _Code.NODE_NOT_READY: _node_not_ready,
    _Code.NODE_PRESSURE: _node_pressure,
    _Code.NODE_NETWORK_UNAVAILABLE: lambda rejection, wording: f"its network is not set up: {rejection['message']}",
    _Code.NODE_TAINTED: lambda rejection, wording: f"taint {rejection['taint']} is not tolerated",
    _Code.NODE_SELECTOR: _node_selector,
    _Code.NODE_AFFINITY: _node_affinity,
    _Code.INSUFFICIENT_RESOURCE: _insufficient,
    _Code.RESOURCE_NOT_OFFERED: _not_offered,
    _Code.RESOURCE_UNREADABLE: lambda rejection, wording: (
        f"its status.allocatable[{rejection['resource']}] cannot be read: {rejection['error']}"
    ),
    _Code.HOST_EXCLUDED: message,
    _Code.CLAIM_ELSEWHERE: _claim_elsewhere,
    _Code.PLUGIN_REJECTED: lambda rejection, wording: f"plug-in {rejection['plugin']}: {rejection['message']}",
    _Code.PLUGIN_FAILED: _plugin_failed,
    _Code.FITS_NOW: plain("it could take the pod by now"),
    _Code.NO_DEVICES: plain("it publishes no devices"),
    _Code.POOL_UPDATING: _pool_updating,
    _Code.POOL_INVALID: _pool_invalid,
    _Code.NUMA_TOO_FEW_CPUS: _numa_cpus,
    _Code.NUMA_TOO_FAR: _numa_far,
}
