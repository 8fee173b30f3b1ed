"""Renders a rejection with the sentence of its code, which the other modules of this package `add`; and what several sentences
say alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
Sentence = Callable[[Rejection, Wording], str]
_Code = RejectionCode
# Codes whose sentence contains the device already.
NAMING_DEVICE = frozenset({_Code.CLAIM_DEVICE_TAINTED, _Code.DEVICE_NOT_READY, _Code.DEVICE_FAILED, _Code.DEVICE_VANISHED,
                           _Code.DEVICE_NOT_PUBLISHED})
_sentences: dict[RejectionCode, Sentence] = {}


def add(sentences: Mapping[RejectionCode, Sentence]) -> None:
    """The sentences of some codes."""
    _sentences.update(sentences)


def render(rejection: Rejection, wording: Wording = EXACT) -> str:
    """The sentence, with the device's name in front where it does not contain it."""
    text = sentence(rejection, wording)
    named = "where" in rejection.detail and rejection.code is not RejectionCode.SELECTOR_ERROR
    if rejection.device is None or rejection.code in NAMING_DEVICE or named:
        return text
    return f"{rejection.device.device}: {text}"


def render_all(rejections: Iterable[Rejection], wording: Wording = EXACT) -> str:
    return "; ".join(dict.fromkeys(render(rejection, wording) for rejection in rejections))


def sentence(rejection: Rejection, wording: Wording = EXACT) -> str:
    """Without the device's name."""
    return _sentences[rejection.code](rejection, wording)


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


def plain(text: str) -> Callable[[Rejection, Wording], str]:
    return lambda rejection, wording: text


def message(rejection: Rejection, wording: Wording) -> str:
    where = rejection.detail.get("where")
    return f"{where}: {rejection['message']}" if where else str(rejection["message"])


def taint_text(rejection: Rejection) -> str:
    """The taint, and the DeviceTaintRules by which a device has it."""
    rules = rejection.detail.get("rules") or ()
    return f"{rejection['taint']} by DeviceTaintRule {', '.join(rules)}" if rules else str(rejection["taint"])


def held_text(rejection: Rejection, wording: Wording) -> str:
    word = f"{rejection['id']} is " if "id" in rejection.detail else ""
    if same := rejection.detail.get("same"):
        return f"{word}allocated to {same} of the same VM"
    if rejection.holder is None:
        return f"{word or 'is '}held already"
    since = f" since {wording.time(rejection.since)}" if rejection.since else ""
    return f"{word}held by {holder_name(rejection.holder, wording)}{since}"
