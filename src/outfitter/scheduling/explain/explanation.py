"""What is said of somebody who waits or has something: one sentence, a handful of lines that matter, and what could be done;
host by host and device by device on request. Times in it are as stored; whoever shows it says them as people do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from outfitter.api.kinds import Object
from outfitter.scheduling.explain import grouping
from outfitter.scheduling.scheduler import Waiting


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is to be said about somebody."""

    about: str  # "vmi/blue"
    namespace: str
    state: str  # for programs: Running, Paused, Ended, Failed, Deleting, Holding, Unused, Fits, Waiting
    sentence: str
    waits_for: str = ""  # for programs: devices, scheduler, claim, ...: docs/why.md has them all
    lines: tuple[str, ...] = ()  # what matters most
    todo: tuple[str, ...] = ()  # what would help, as far as that is known
    waiting: Waiting | None = field(default=None, repr=False)  # with what every host says

    def text(self, *, long: bool = False, more: str = "") -> list[str]:
        """For people. The holder's namespace is left out where it is their own. `more`: what to type for the long answer."""
        hosts = self.waiting.hosts if self.waiting is not None else ()
        body = [*(grouping.long(hosts) if long else grouping.short(hosts)), *self.lines]
        if hosts and not long:
            body = [plain(line) for line in body]
        out = [f"{self.about} {self.sentence}", *(f"  {line}" for line in body), *(f"  -> {line}" for line in self.todo)]
        if more and not long and any(refusal.seek is not None for _, refusal in hosts):
            out.append(f"  ({more} tells of each host and device)")
        return [line.replace(f" in {self.namespace} ", " ") for line in out]

    def to_object(self, *, long: bool = False) -> Object:
        """For programs; with `long` every host with every device, else the hosts by reason."""
        out: Object = {"about": self.about, "namespace": self.namespace, "state": self.state, "sentence": self.sentence}
        out |= {"waitsFor": self.waits_for} if self.waits_for else {}
        out |= {"lines": list(self.lines), "todo": list(self.todo)}
        if self.waiting is None or not self.waiting.hosts:
            return out
        out["reasons"] = [{"reason": group.nearest.summary, "hosts": list(group.hosts)}
                          for group in grouping.groups(self.waiting.hosts)]
        if long:
            out["hosts"] = [{"host": host, "reason": refusal.summary, "devices": [
                {"device": one.device, "request": one.request, "code": one.code, "why": one.text} for one in refusal.obstacles]}
                for host, refusal in grouping.by_distance(self.waiting.hosts)]
        return out

    def said_of(self, about: str, join: str) -> Explanation:
        """The same, of somebody who waits for this one."""
        return replace(self, about=about, sentence=f"{join} {self.about} {self.sentence}")


def plain(line: str) -> str:
    """Without the names of claims, which are long and say less than the machine's."""
    while (begin := line.find(" (claim ")) >= 0 and (end := line.find(")", begin)) >= 0:
        line = line[:begin] + line[end + 1:]
    return line
