"""The answer to "why": one sentence, a handful of lines that matter, and what would help; host by host and device by device on
request. Times in it are as stored; the CLI shows them in local time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from outfitter.api.kinds import Object
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import EXACT, Wording, to_object
from outfitter.scheduling.explain import grouping
from outfitter.scheduling.placement import Waiting


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an object waits, or what it has."""

    about: str  # "vmi/blue"
    namespace: str
    state: str  # for programs: Running, Paused, Ended, Failed, Deleting, Holding, Unused, Fits, Waiting
    sentence: str
    waits_for: str = ""  # for programs: devices, scheduler, claim, ...: docs/why.md has them all
    lines: tuple[str, ...] = ()  # what matters most
    todo: tuple[str, ...] = ()  # what would help, as far as that is known
    waiting: Waiting | None = field(default=None, repr=False)  # with the rejections of every host
    rejections: tuple[Rejection, ...] = ()  # of the object itself or its claims, where no host was asked

    def text(self, *, long: bool = False, more: str = "", time: Callable[[str], str] = str) -> list[str]:
        """For people. A holder in the namespace of the object is named without it. `more`: what to type for the long answer.
        `time`: how stored times are shown; that of the ClusterObjects, which the lines were made with."""
        hosts = self.waiting.hosts if self.waiting is not None else ()
        shown = grouping.long(hosts, Wording(self.namespace, time=time)) if long else grouping.short(
            hosts, Wording(self.namespace, claims=False, time=time))  # names of claims are long and say less than the VM's
        out = [f"{self.about} {self.sentence}", *(f"  {line}" for line in (*shown, *self.lines)),
               *(f"  -> {line}" for line in self.todo)]
        if more and not long and any(rejected.seek is not None for _, rejected in hosts):
            out.append(f"  ({more} shows each host and device)")
        return out

    @property
    def codes(self) -> tuple[RejectionCode, ...]:
        """Each code once, the nearest first."""
        of_hosts = self.waiting.codes if self.waiting is not None else ()
        return tuple(dict.fromkeys([*(rejection.code for rejection in self.rejections), *of_hosts]))

    def to_object(self, *, long: bool = False) -> Object:
        """For programs; with `long` every host with every device, else the hosts by reason."""
        out: Object = {"about": self.about, "namespace": self.namespace, "state": self.state, "sentence": self.sentence}
        out |= {"waitsFor": self.waits_for} if self.waits_for else {}
        out |= {"lines": list(self.lines), "todo": list(self.todo)}
        out |= {"codes": list(map(str, self.codes))} if self.codes else {}
        out |= {"rejections": _objects(self.rejections)} if self.rejections else {}
        if self.waiting is None or not self.waiting.hosts:
            return out
        out["reasons"] = [{"hosts": list(group.hosts), "rejections": _objects(group.nearest.rejections)}
                          for group in grouping.groups(self.waiting.hosts)]
        if long:
            out["hosts"] = [{"host": host, "rejections": _objects(rejected.rejections), "devices": _objects(rejected.obstacles)}
                            for host, rejected in grouping.by_distance(self.waiting.hosts)]
        return out

    def said_of(self, about: str, join: str) -> Explanation:
        """The same, of an object that waits for this one."""
        return replace(self, about=about, sentence=f"{join} {self.about} {self.sentence}")


def _objects(rejections: Sequence[Rejection]) -> list[Object]:
    return [to_object(rejection, EXACT) for rejection in rejections]
