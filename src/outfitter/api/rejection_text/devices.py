"""Of the devices of a host: too few that match or are free, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text.rendering import (
    NAMED,
    Sentence,
    Wording,
    held_text,
    holder_name,
    plain,
    request_name,
    sentence,
    taint_text,
)

_Code = RejectionCode


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
        return f"tainted {taint_text(rejection)}"
    longer = " any longer" if rejection.detail.get("expired") else ""
    return f"tainted {taint_text(rejection)}, which {request_name(rejection.detail)} does not tolerate{longer}"


def _capacity_small(rejection: Rejection, wording: Wording) -> str:
    return f"has too little capacity for {request_name(rejection.detail)}"


def _capacity_used(rejection: Rejection, wording: Wording) -> str:
    return f"has too little capacity left for {request_name(rejection.detail)}"


def _excluded(rejection: Rejection, wording: Wording) -> str:
    holder = holder_name(rejection.holder, wording) if rejection.holder is not None else "another holder"
    return (f"{rejection['other']}, with which it cannot be used together, is held by {holder} since "
            f"{wording.time(rejection.since)}")


def _cpu_held(rejection: Rejection, wording: Wording) -> str:
    holder = holder_name(rejection.holder, wording) if rejection.holder is not None else "another holder"
    return f"CPU {rejection['cpu']} of {rejection['host']} is held by {holder} since {wording.time(rejection.since)}"


SENTENCES: Mapping[RejectionCode, Sentence] = {
    _Code.NO_MATCH: _no_match,
    _Code.TOO_FEW_FREE: _too_few_free,
    _Code.TOO_FEW_TOGETHER: _too_few_together,
    _Code.TOO_MANY_DEVICES: _too_many,
    _Code.CONSTRAINT_UNMET: _constraint,
    _Code.COUNTER_EXHAUSTED: _counter,
    _Code.SAME_HARDWARE: _same_hardware,
    _Code.NO_COMBINATION: plain("devices match each request, but no choice of them serves all requests together"),
    _Code.SEARCH_LIMIT: _search_limit,
    _Code.SELECTOR_BUDGET: _selector_budget,
    _Code.SELECTOR_FALSE: _selector_false,
    _Code.SELECTOR_ERROR: _selector_error,
    _Code.ALIAS_MISMATCH: _alias_mismatch,
    _Code.HELD: held_text,
    _Code.HARDWARE_HELD: _hardware_held,
    _Code.RESERVED: _out_of_service("reserved"),
    _Code.QUARANTINED: _out_of_service("quarantined"),
    _Code.UNCLEAN: _out_of_service("unclean"),
    _Code.ASSIGNED_TO_OTHER: _assigned_to_other,
    _Code.TAINTED: _tainted,
    _Code.CAPACITY_TOO_SMALL: _capacity_small,
    _Code.CAPACITY_USED: _capacity_used,
    _Code.ATTRIBUTE_MISSING: lambda rejection, wording: f"has no {rejection['attribute']}",
    _Code.NOT_REACHABLE: plain("cannot be used on this host"),
    _Code.EXCLUDED: _excluded,
    _Code.CPU_HELD: _cpu_held,
}
