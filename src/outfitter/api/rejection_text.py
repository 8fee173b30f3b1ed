"""Rejections in words: the one renderer behind conditions, events, `outfit why`, `outfit plan`, JSON and the page. Pure.

    render(rejection)                                # "gpu-7f3c: held by vmi/blue (claim train-0) in lab since 2026-01-31..."
    render(rejection, Wording("lab", claims=False))  # "gpu-7f3c: held by vmi/blue since 2026-01-31T12:04:00Z"

Nothing reads a sentence back. Its golden file is tests/api/golden/rejection_text.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from outfitter.api.kinds import Object
from outfitter.api.ledger_page.booking import Holder
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import OutfitterError

UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
HUGE_PAGES = "hugepages-"
NAMED = 3  # of many alternatives or devices
_Error = TypeVar("_Error", bound=OutfitterError)


@dataclass(frozen=True, slots=True)
class Wording:
    """For whom, and about how many."""

    namespace: str = ""  # the reader's: a holder in it is named without its namespace
    claims: bool = True  # name the claim of a holder that has a better name
    many: bool = False  # the sentence is about several hosts
    time: Callable[[str], str] = str  # how a stored time is shown: as it is, or as local time
    requests: bool = True  # name the request or alias that rejects a device; False: the line begins with it


EXACT = Wording()  # for conditions and events: everything is named


def render(rejection: Rejection, wording: Wording = EXACT) -> str:
    """The sentence, with the device's name in front where it does not contain it."""
    text = sentence(rejection, wording)
    named = "where" in rejection.detail and rejection.code is not RejectionCode.SELECTOR_ERROR
    if rejection.device is None or rejection.code in _NAMES_DEVICE or named:
        return text
    return f"{rejection.device.device}: {text}"


def render_all(rejections: Iterable[Rejection], wording: Wording = EXACT) -> str:
    return "; ".join(dict.fromkeys(render(rejection, wording) for rejection in rejections))


def sentence(rejection: Rejection, wording: Wording = EXACT) -> str:
    """Without the device's name."""
    return _SENTENCES[rejection.code](rejection, wording)


def to_object(rejection: Rejection, wording: Wording = EXACT) -> Object:
    """For programs: {code, message, device?, holder?, since?, detail?}. The schema is stable; the message is not."""
    out = rejection.to_object()
    return {"code": out.pop("code"), "message": sentence(rejection, wording), **out}


def error(kind: type[_Error], rejection: Rejection) -> _Error:
    """An error that reports a rejection: callers look at its `rejection`, people read its message."""
    made = kind(render(rejection))
    made.rejection = rejection
    return made


def holder_name(holder: Holder, wording: Wording = EXACT) -> str:
    """ "vmi/blue (claim train-0) in lab"."""
    if not holder.purpose:
        what = f"{holder.kind} {holder.name}"
    else:
        what = f"{holder.purpose} (claim {holder.name})" if wording.claims and holder.name else holder.purpose
    return f"{what} in {holder.namespace}" if holder.namespace and holder.namespace != wording.namespace else what


def amount_text(name: str, amount: int, *, up: bool = False) -> str:
    """With at most one digit after the point: what is free is rounded down and what is wanted up, so that the one never looks
    like the other."""
    if name == "cpu":
        return f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    if name not in ("memory", "ephemeral-storage") and not name.startswith(HUGE_PAGES):
        return str(amount)
    power = min(max(amount.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    tenths = -(-amount * 10 // 1024**power) if up else amount * 10 // 1024**power
    return f"{tenths / 10:.1f}".removesuffix(".0") + UNITS[power]


def request_name(detail: Mapping[str, Any]) -> str:
    """What asks: an extended resource, a PCI alias or a request of a claim; "" where the detail names none."""
    return next((f"{word} {detail[word]}" for word in ("resource", "alias", "request") if detail.get(word)), "")


def _plain(text: str) -> Callable[[Rejection, Wording], str]:
    return lambda rejection, wording: text


def _message(rejection: Rejection, wording: Wording) -> str:
    where = rejection.detail.get("where")
    return f"{where}: {rejection['message']}" if where else str(rejection["message"])


# -- a pod and its claims


def _claim_missing(rejection: Rejection, wording: Wording) -> str:
    return f"claim {rejection['claim']} (resourceClaims entry {rejection['entry']}) does not exist"


def _claim_not_created(rejection: Rejection, wording: Wording) -> str:
    return f'claim {rejection["entry"]} is not created yet: is there a ResourceClaimTemplate "{rejection["template"]}"?'


def _claim_name_taken(rejection: Rejection, wording: Wording) -> str:
    owners = ", ".join(rejection["owners"]) or "no object"
    return (f"claim {rejection['claim']} belongs to {owners} and not to pod {rejection['pod']}, for which a claim of this name "
            "is created; delete it, and the pod is scheduled")


def _claim_in_use(rejection: Rejection, wording: Wording) -> str:
    users = rejection.detail.get("users") or [f"pod/{name}" for name in rejection["pods"]]
    return f"claim {rejection['claim']} is in use by {', '.join(users)}"


def _claim_device_tainted(rejection: Rejection, wording: Wording) -> str:
    device = rejection.device.short if rejection.device is not None else "a device"
    claim = rejection.detail.get("claim")
    return f"{f'claim {claim} keeps ' if claim else ''}{device}, which has the taint {_taint(rejection)}"


def _taint(rejection: Rejection) -> str:
    """The taint, and the DeviceTaintRules by which a device has it."""
    rules = rejection.detail.get("rules") or ()
    return f"{rejection['taint']} by DeviceTaintRule {', '.join(rules)}" if rules else str(rejection["taint"])


def _request_missing(rejection: Rejection, wording: Wording) -> str:
    return (f'claim {rejection["claim"]} has no request "{rejection["request"]}"; it has '
            f"{', '.join(rejection['requests']) or 'none'}")


def _class_missing(rejection: Rejection, wording: Wording) -> str:
    return f"{rejection['where']}: there is no DeviceClass {rejection['class']}"


def _feature_disabled(rejection: Rejection, wording: Wording) -> str:
    where = rejection.detail.get("where")
    return f"{where}: {rejection['what']}, but the {rejection['feature']} feature is disabled" + (
        f": {rejection['instead']}" if rejection.detail.get("instead") else "") if where else (
        f"{rejection['what']}, and the {rejection['feature']} feature is disabled")


def _assigned_missing(rejection: Rejection, wording: Wording) -> str:
    return f"{rejection['id']} ({rejection['resource']}) does not exist"


def _assigned_ambiguous(rejection: Rejection, wording: Wording) -> str:
    return f"{rejection['id']} ({rejection['resource']}) may be any of {', '.join(rejection['devices'])}: write host/device"


def _assigned_elsewhere(rejection: Rejection, wording: Wording) -> str:
    if "id" not in rejection.detail:
        return "it lacks the pre-assigned devices"
    return f"{rejection['id']} is on {', '.join(rejection['hosts']) or 'no host'}"


# -- filters


def _node_not_ready(rejection: Rejection, wording: Wording) -> str:
    return f"it is not ready: {rejection['message']}"


def _node_pressure(rejection: Rejection, wording: Wording) -> str:
    return f"it is short of {rejection['short']}: {rejection['message']}"


def _node_selector(rejection: Rejection, wording: Wording) -> str:
    has = rejection.detail.get("has")
    return f"nodeSelector wants {rejection['label']}={rejection['wanted']}; it has {'no such label' if has is None else has}"


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
    name, values, has = term["key"], ", ".join(term["values"]), term.get("has")
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
    return f"{wanted}; it has {'no such label' if has is None else has}"


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


# -- devices of a host


def _pool_updating(rejection: Rejection, wording: Wording) -> str:
    if where := rejection.detail.get("where"):
        return f"{where}: asks for all devices, but resource pool {rejection['pool']} is currently being updated"
    return f"pool {rejection['pool']} is being updated: not all of its slices are published"


def _pool_invalid(rejection: Rejection, wording: Wording) -> str:
    if where := rejection.detail.get("where"):
        return (f"{where}: asks for all devices, but resource pool {rejection['pool']} is currently invalid "
                f"({rejection['message']})")
    return f"resource pool {rejection['pool']} is invalid: {rejection['message']}"


def _no_match(rejection: Rejection, wording: Wording) -> str:
    devices = "none of their devices" if wording.many else f"none of its {rejection['devices']} devices"
    if alias := rejection.detail.get("alias"):
        return f"{devices} is what alias {alias} asks for"
    names = " nor ".join(f"{request_name(each)} ({each['class']})" for each in rejection["alternatives"])
    return f"{devices} is what {names} asks for"


def _too_few_free(rejection: Rejection, wording: Wording) -> str:
    wanted = "all" if rejection.detail.get("all") else rejection["wanted"]
    return f"{request_name(rejection.detail)} wants {wanted}: {rejection['match']} match, {rejection['free']} free"


def _too_few_together(rejection: Rejection, wording: Wording) -> str:
    detail = rejection.detail
    if "aliases" not in detail:
        return f"the requests want {detail['wanted']} devices together, and {detail['free']} free ones match"
    policy = " with each from another provider (group_policy isolate)" if detail.get("isolate") else ""
    rooms = "; ".join(f"{home} can give {count}" for home, count in detail["rooms"].items())
    return (f"{detail['wanted']} devices are wanted together ({', '.join(detail['aliases'])}){policy}, and there are too few: "
            f"{rooms}")


def _too_many(rejection: Rejection, wording: Wording) -> str:
    return (f"{rejection['where']}: number of requested devices {rejection['wanted']} exceeds the claim limit of "
            f"{rejection['limit']}")


def _constraint(rejection: Rejection, wording: Wording) -> str:
    detail = rejection.detail
    if rejection.device is not None:
        kind = "distinctAttribute" if detail["distinct"] else "matchAttribute"
        return (f"{detail['where']}: cannot add device {rejection.device} because a claim constraint would not be satisfied: "
                f"{kind} {detail['attribute']}")
    if "free" in detail:
        short = str(detail["attribute"]).rpartition("/")[2]
        values = ", ".join(f"{short} {value} has {free} free" for value, free in detail["free"].items())
        more = ", ..." if detail.get("more") else ""
        return f"{values}{more}; {detail['wanted']} wanted together (matchAttribute {short})"
    words = "different values" if detail["distinct"] else "free devices with one value"
    return f"there are not {detail['wanted']} {words} of {detail['attribute']}"


def _counter(rejection: Rejection, wording: Wording) -> str:
    detail = rejection.detail
    if "left" in detail:
        return (f"needs {detail['amount']} {detail['counter']} of {detail['set']}, of which {detail['left']} are left: the "
                "rest of the card is allocated")
    if rejection.device is not None:
        others = [_excluding(cause, wording) for cause in rejection.causes]
        words = ", ".join(others[:NAMED]) + (" and more" if len(others) > NAMED else "")
        return f"excluded by {words or 'others'}, with which it shares {', '.join(detail['sets'])}"
    if "counter" in detail:
        return f"the devices share {detail['counter']}, of which too little is left"
    return f"{request_name(detail)} wants {detail['wanted']}: too little is left of the counters that its devices share"


def _excluding(cause: Rejection, wording: Wording) -> str:
    name = cause.device.device if cause.device is not None else ""
    return f"{name} ({sentence(cause, wording)})" if cause.holder is not None or cause.code is not RejectionCode.HELD else name


def _search_limit(rejection: Rejection, wording: Wording) -> str:
    return (f"{rejection['where']}: gave up on node {rejection['node']} after {rejection['attempts']} attempts to combine "
            "devices: use fewer constraints or alternatives at once")


def _selector_budget(rejection: Rejection, wording: Wording) -> str:
    where = f"{rejection['where']}: " if rejection.detail.get("where") else ""
    return (f"{where}the selectors cost more than {rejection['limit']} on all devices together: use fewer loops, compare "
            "attributes with literals, or ask for fewer different things in one pod")


# -- one device


def _selector_false(rejection: Rejection, wording: Wording) -> str:
    detail = rejection.detail
    number = f" (selector {detail['selector']} of {detail['selectors']})" if detail["selectors"] > 1 else ""
    has, lacks = detail["has"], detail["lacks"]
    says = [f"it says {', '.join(f'{name} {value}' for name, value in has.items())}"] if has else []
    says += [f"it has no {', '.join(lacks)}"] if lacks else []
    owner = f"{detail['owner']}{number} " if wording.requests or detail["owner"] != request_name(detail) else ""
    return f"{owner}wants {detail['term']}" + (f"; {', '.join(says)}" if says else "")


def _selector_error(rejection: Rejection, wording: Wording) -> str:
    detail = rejection.detail
    spelling = f"; for devices without {detail['missing']} write {detail['optional']}" if detail.get("optional") else ""
    return f"{detail['where']}: {detail['error']}{spelling}"


def _alias_mismatch(rejection: Rejection, wording: Wording) -> str:
    if rejection.causes:
        return "; ".join(dict.fromkeys(sentence(cause, wording) for cause in rejection.causes))
    detail = rejection.detail
    match detail["field"]:
        case "provider":
            return "is on no provider, and the alias asks Placement"
        case "resource_class":
            return f"is a {', '.join(detail['has'])}, not a {detail['wanted']}"
        case "traits":
            return "; ".join(detail["lacks"])
        case "ids":
            return f"has the ids {detail['has']}, not {detail['wanted']}"
        case "ports":
            return f"is {detail['has']}, which is for ports alone"
        case "device_type" if not detail["wanted"]:
            return "is a physical function, which is given only to an alias with device_type type-PF"
        case "device_type":
            return f"is {detail['has']}, not {detail['wanted']}"
    has = {True: "is live_migratable", False: "is not live_migratable", None: "does not say whether it is live_migratable"}
    return f"{has[detail['has']]}, and the alias wants {'yes' if detail['wanted'] else 'no'}"


def _held(rejection: Rejection, wording: Wording) -> str:
    word = f"{rejection['id']} is " if "id" in rejection.detail else ""
    if same := rejection.detail.get("same"):
        return f"{word}allocated to {same} of the same VM"
    if rejection.holder is None:
        return f"{word or 'is '}held already"
    since = f" since {wording.time(rejection.since)}" if rejection.since else ""
    return f"{word}held by {holder_name(rejection.holder, wording)}{since}"


def _hardware_held(rejection: Rejection, wording: Wording) -> str:
    return (f"the same hardware ({', '.join(rejection['hardware'])}) as {rejection['other']}, which is "
            f"{_taken(rejection, wording)}")


def _taken(rejection: Rejection, wording: Wording) -> str:
    """How the other name of the hardware is taken."""
    if rejection.causes:
        return "; ".join(sentence(cause, wording) for cause in rejection.causes)
    if rejection.holder is None:
        return "held already"
    since = f" since {wording.time(rejection.since)}" if rejection.since else ""
    return f"held by {holder_name(rejection.holder, wording)}{since}"


def _same_hardware(rejection: Rejection, wording: Wording) -> str:
    pairs = ", ".join(f"{' and '.join(names)} ({hardware})" for hardware, names in rejection["hardware"].items())
    return f"some of the devices that match are the same hardware under several names, which is allocated once: {pairs}"


def _out_of_service(state: str) -> Callable[[Rejection, Wording], str]:
    def text(rejection: Rejection, wording: Wording) -> str:
        word = f"{rejection['id']} is " if "id" in rejection.detail else ""
        reason = rejection.detail.get("reason")
        return f"{word}{state} since {wording.time(rejection.since)}{f': {reason}' if reason else ''}"

    return text


def _assigned_to_other(rejection: Rejection, wording: Wording) -> str:
    namespace = rejection["namespace"]
    where = "" if namespace == wording.namespace else f" in {namespace}"
    return f"pre-assigned to pod/{rejection['pod']}{where}"


def _tainted(rejection: Rejection, wording: Wording) -> str:
    if not ("request" in rejection.detail or "resource" in rejection.detail):
        return f"tainted {_taint(rejection)}"
    longer = " any longer" if rejection.detail.get("expired") else ""
    return f"tainted {_taint(rejection)}, which {request_name(rejection.detail)} does not tolerate{longer}"


def _capacity_small(rejection: Rejection, wording: Wording) -> str:
    return f"has too little capacity for {request_name(rejection.detail)}"


def _capacity_used(rejection: Rejection, wording: Wording) -> str:
    return f"has too little capacity left for {request_name(rejection.detail)}"


# -- NUMA


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
        return f"{where}, too far from the free CPUs, and {_held(rejection, wording)}"
    return (f"no NUMA cell has both the CPUs and devices that are near enough ({', '.join(rejection['policies'])}): "
            f"{_cells(rejection)}")


# -- page, binding


def _excluded(rejection: Rejection, wording: Wording) -> str:
    holder = holder_name(rejection.holder, wording) if rejection.holder is not None else "another holder"
    return (f"{rejection['other']}, with which it cannot be used together, is held by {holder} since "
            f"{wording.time(rejection.since)}")


def _cpu_held(rejection: Rejection, wording: Wording) -> str:
    holder = holder_name(rejection.holder, wording) if rejection.holder is not None else "another holder"
    return f"CPU {rejection['cpu']} of {rejection['host']} is held by {holder} since {wording.time(rejection.since)}"


def _condition(rejection: Rejection) -> str:
    message = rejection.detail.get("message")
    return f" ({message})" if message else ""


def _device_not_ready(rejection: Rejection, wording: Wording) -> str:
    name = rejection.device.short if rejection.device is not None else "a device"
    return f"{name} is not {rejection['condition']} yet{_condition(rejection)}"


def _device_failed(rejection: Rejection, wording: Wording) -> str:
    name = rejection.device.short if rejection.device is not None else "a device"
    return f"{name}: {rejection['condition']}{_condition(rejection)}"


def _several(causes: Sequence[Rejection], wording: Wording) -> str:
    more = f"; and {len(causes) - NAMED} more" if len(causes) > NAMED else ""
    return "; ".join(render(cause, wording) for cause in causes[:NAMED]) + more


def _ready_timeout(rejection: Rejection, wording: Wording) -> str:
    return f"not made ready within {rejection['seconds']} s: {_several(rejection.causes, wording)}"


def _given_back(rejection: Rejection, wording: Wording) -> str:
    return f"devices on {rejection['host'] or 'its host'} were given back: {_several(rejection.causes, wording)}"


def _no_free_twin(rejection: Rejection, wording: Wording) -> str:
    if not rejection["match"]:
        return f"no other host has a device of the same kind as {rejection['name']}"
    many = f"{rejection['wanted']} devices" if rejection["wanted"] > 1 else "a device"
    held = f" ({_several(rejection.causes, wording)})" if rejection.causes else ""
    return (f"{rejection['name']} needs {many} of the same kind on one other host; others have {rejection['match']}, at most "
            f"{rejection['free']} free on one{held}")


def _vanished(rejection: Rejection, wording: Wording) -> str:
    assert rejection.device is not None
    return f"{rejection.device.device} is no longer on the bus of {rejection['host']}, though the VM has it"


def _not_published(rejection: Rejection, wording: Wording) -> str:
    device = rejection.device
    assert device is not None
    return f"{device.device} of pool {device.pool} is no longer published by {device.driver}, though the VM has it"


_Code = RejectionCode
# Codes whose sentence contains the device already.
_NAMES_DEVICE = frozenset({_Code.CLAIM_DEVICE_TAINTED, _Code.DEVICE_NOT_READY, _Code.DEVICE_FAILED, _Code.DEVICE_VANISHED,
                           _Code.DEVICE_NOT_PUBLISHED})
_SENTENCES: Mapping[RejectionCode, Callable[[Rejection, Wording], str]] = {
    _Code.NO_HOST: _plain("there is no host"),
    _Code.POD_INVALID: _message,
    _Code.OBJECT_UNREADABLE: _message,
    _Code.CLAIM_MISSING: _claim_missing,
    _Code.CLAIM_NOT_CREATED: _claim_not_created,
    _Code.CLAIM_NAME_TAKEN: _claim_name_taken,
    _Code.CLAIM_DELETING: lambda rejection, wording: f"claim {rejection['claim']} is being deleted",
    _Code.CLAIM_IN_USE: _claim_in_use,
    _Code.CLAIM_DEVICE_TAINTED: _claim_device_tainted,
    _Code.CLAIM_INVALID: _message,
    _Code.REQUEST_MISSING: _request_missing,
    _Code.CLASS_MISSING: _class_missing,
    _Code.FEATURE_DISABLED: _feature_disabled,
    _Code.POD_GROUP_INCOMPLETE: lambda rejection, wording: (
        f"pod group {rejection['group']} has {rejection['members']} of at least {rejection['wanted']} pods: it waits for the "
        "others"
    ),
    _Code.POD_GROUP_TOO_FEW_HOSTS: lambda rejection, wording: (
        f"there are not enough hosts available for pod group {rejection['group']}: {rejection['placed']} of at least "
        f"{rejection['wanted']} pods can be placed together"
    ),
    _Code.ASSIGNED_DEVICE_MISSING: _assigned_missing,
    _Code.ASSIGNED_DEVICE_AMBIGUOUS: _assigned_ambiguous,
    _Code.NODE_NAME: lambda rejection, wording: f"the pod is for {rejection['node']} alone (spec.nodeName)",
    _Code.NODE_CORDONED: _plain("it takes no new pods (cordoned)"),
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
    _Code.HOST_EXCLUDED: _message,
    _Code.CLAIM_ELSEWHERE: _claim_elsewhere,
    _Code.ASSIGNED_DEVICE_ELSEWHERE: _assigned_elsewhere,
    _Code.ASSIGNED_RESOURCE_OFFERED: lambda rejection, wording: (
        f"it offers {', '.join(rejection['resources'])} itself, so its devices cannot be pre-assigned"
    ),
    _Code.PLUGIN_REJECTED: lambda rejection, wording: f"plug-in {rejection['plugin']}: {rejection['message']}",
    _Code.PLUGIN_FAILED: _plugin_failed,
    _Code.FITS_NOW: _plain("it could take the pod by now"),
    _Code.NO_DEVICES: _plain("it publishes no devices"),
    _Code.POOL_UPDATING: _pool_updating,
    _Code.POOL_INVALID: _pool_invalid,
    _Code.NO_MATCH: _no_match,
    _Code.TOO_FEW_FREE: _too_few_free,
    _Code.TOO_FEW_TOGETHER: _too_few_together,
    _Code.TOO_MANY_DEVICES: _too_many,
    _Code.CONSTRAINT_UNMET: _constraint,
    _Code.COUNTER_EXHAUSTED: _counter,
    _Code.SAME_HARDWARE: _same_hardware,
    _Code.NO_COMBINATION: _plain("devices match each request, but no choice of them serves all requests together"),
    _Code.SEARCH_LIMIT: _search_limit,
    _Code.SELECTOR_BUDGET: _selector_budget,
    _Code.SELECTOR_FALSE: _selector_false,
    _Code.SELECTOR_ERROR: _selector_error,
    _Code.ALIAS_MISMATCH: _alias_mismatch,
    _Code.HELD: _held,
    _Code.HARDWARE_HELD: _hardware_held,
    _Code.RESERVED: _out_of_service("reserved"),
    _Code.QUARANTINED: _out_of_service("quarantined"),
    _Code.UNCLEAN: _out_of_service("unclean"),
    _Code.ASSIGNED_TO_OTHER: _assigned_to_other,
    _Code.TAINTED: _tainted,
    _Code.CAPACITY_TOO_SMALL: _capacity_small,
    _Code.CAPACITY_USED: _capacity_used,
    _Code.ATTRIBUTE_MISSING: lambda rejection, wording: f"has no {rejection['attribute']}",
    _Code.NOT_REACHABLE: _plain("cannot be used on this host"),
    _Code.NUMA_TOO_FEW_CPUS: _numa_cpus,
    _Code.NUMA_TOO_FAR: _numa_far,
    _Code.EXCLUDED: _excluded,
    _Code.CPU_HELD: _cpu_held,
    _Code.PAGE_CONFLICT: _message,
    _Code.DEVICE_NOT_READY: _device_not_ready,
    _Code.DEVICE_FAILED: _device_failed,
    _Code.DEVICE_READY_TIMEOUT: _ready_timeout,
    _Code.DEVICES_GIVEN_BACK: _given_back,
    _Code.CLAIM_NOT_ALLOCATED: lambda rejection, wording: f"claim {rejection['claim']} is not allocated",
    _Code.CLAIM_NOT_RESERVED: lambda rejection, wording: (
        f"pod {rejection['pod']} is not allowed to use claim {rejection['claim']}: it is not reserved for the pod"),
    _Code.NOT_BOOKED: lambda rejection, wording: (
        f"{', '.join(rejection['devices'])}: not booked for claim {rejection['claim']} on {rejection['host']} yet"),
    _Code.DEVICE_MISSING: _message,
    _Code.DEVICE_IN_USE: _message,
    _Code.DRIVER_NOT_BOUND: _message,
    _Code.DRIVER_NOT_REGISTERED: lambda rejection, wording: (
        f"DRA driver {rejection['driver']} is not registered: claim {rejection['claim']} has a device of it"),
    _Code.DRIVER_CALL_FAILED: lambda rejection, wording: f"DRA driver {rejection['driver']}: {rejection['message']}",
    _Code.DRIVER_REFUSED: lambda rejection, wording: f"DRA driver {rejection['driver']}: {rejection['message']}",
    _Code.DRIVER_CALL_PENDING: lambda rejection, wording: (
        f"the DRA drivers of its claims have not answered for {rejection['seconds']} s"),
    _Code.IOMMU_GROUP_SHARED: _message,
    _Code.VFS_PRESENT: _message,
    _Code.PREPARE_FAILED: _message,
    _Code.RELEASE_FAILED: _message,
    _Code.DEVICE_PLUGIN_MISSING: lambda rejection, wording: (
        f"waiting for the device plugin of {', '.join(rejection['resources'])} on {rejection['host']}"),
    _Code.DEVICES_UNAVAILABLE: lambda rejection, wording: (
        f"requested number of devices unavailable for {rejection['resource']}. Requested: {rejection['wanted']}, Available: "
        f"{rejection['free']}"),
    _Code.NO_HEALTHY_DEVICE: lambda rejection, wording: (
        f"no healthy devices present; cannot allocate unhealthy devices {rejection['resource']}"),
    _Code.DEVICE_UNHEALTHY: lambda rejection, wording: f"{rejection['id']} ({rejection['resource']}) is not healthy",
    _Code.TOO_MANY_ASSIGNED: lambda rejection, wording: (
        f"container {rejection['container']} is assigned {rejection['assigned']} of {rejection['resource']} and requests "
        f"{rejection['wanted']}"),
    _Code.ASSIGNED_TWICE: lambda rejection, wording: (
        f"{rejection['id']} ({rejection['resource']}) is assigned to the containers {' and '.join(rejection['containers'])}"),
    _Code.TOPOLOGY_AFFINITY: _plain("Resources cannot be allocated with Topology locality"),
    _Code.PLUGIN_CALL_FAILED: _message,
    _Code.DEVICE_PLUGIN_REFUSED: lambda rejection, wording: (
        f"device plugin of {rejection['resource']}: {rejection['message']}"),
    _Code.PLUGIN_ANSWER_INVALID: _message,
    _Code.DEVICE_VANISHED: _vanished,
    _Code.DEVICE_NOT_PUBLISHED: _not_published,
    _Code.NO_PCI_PORT: _message,
    _Code.NIC_KEPT_BY_GUEST: _message,
    _Code.NIC_NOT_PLUGGED: _message,
    _Code.VF_NOT_BOOKED: _message,
    _Code.VM_MIGRATES: _message,
    _Code.DEVICE_KEPT_BY_GUEST: _message,
    _Code.DEVICE_NOT_PLUGGED: _message,
    _Code.DEVICE_NOT_BOOKED: _message,
    _Code.NO_FREE_DEVICE_ON_HOST: _message,
    _Code.VM_PAUSED: _message,
    _Code.VM_STOPS: _message,
    _Code.PLUG_NOT_IN_PLACE: _message,
    _Code.FLAVOR_DEVICE: _message,
    _Code.CLAIM_BY_NAME: lambda rejection, wording: (
        f"claim {rejection['claim']} is referenced by name: it is one allocation on one host and cannot follow"),
    _Code.DEVICE_NOT_MIGRATABLE: lambda rejection, wording: (
        f"{rejection['name']} of the VM is a device that is not marked as live migratable"),
    _Code.DEVICE_BY_RESOURCE: lambda rejection, wording: (
        f"{rejection['name']} is requested by resource name: only devices of claims travel"),
    _Code.SEVERAL_MEDIATED_DEVICES: lambda rejection, wording: (
        f"{rejection['name']} of the VM is a mediated device, which travels only if it is its one GPU or host device"),
    _Code.ALIAS_NOT_MIGRATABLE: lambda rejection, wording: (
        f"alias {rejection['alias']} of the flavor, by which the VM has {rejection['name']}, does not say live_migratable"),
    _Code.NO_FREE_TWIN: _no_free_twin,
    _Code.NETWORK_NOT_READY: _message,
    _Code.SECRET_MISSING: _message,
    _Code.SOURCES_DISAGREE: _message,
    _Code.DOMAIN_INVALID: _message,
    _Code.HYPERVISOR_REFUSED: _message,
    _Code.HYPERVISOR_AWAY: _message,
    _Code.LAUNCHER_AWAY: _message,
    _Code.LAUNCHER_VERSION: _message,
}
