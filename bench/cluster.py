"""VMs to running on a real control plane (etcd, kube-apiserver, kube-scheduler, kube-controller-manager), beside pods that have
the same claims and nothing of ours, in one run:

    python -m bench.cluster [HOSTSxVFS VMS [PER_SECOND [KILLED]]]

pods     kube-scheduler binds pods with a claim from a template each; none of our processes runs
VMs      VirtualMachines with the same claim, from created to running: two replicas of `outfit controller`, and `outfit node`
         with all simulated hosts in one process, each with the rights of an installation
killed   the same with KILLED VMs (else as many as before), and the replica that leads is killed when half of the VMs run

Figures of a phase are printed when it is over, all of them as a table at the end. Without PER_SECOND, or with 0, objects are
created as fast as several clients can. CPU times count; seconds of the clock depend on what else
the host does. Needs KUBEBUILDER_ASSETS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.process_use import ProcessUse
from bench.vms import CLASS, TEMPLATE
from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import AlreadyExists, Unavailable
from outfitter.roles.process import loop_factory
from outfitter.roles.settings import Settings
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import audit_log, kubernetes
from tests.cluster_roles import ClusterRoles, RoleRun
from tests.cluster_watch import ClusterWatch

CLIENTS = 32  # that create objects at the same time in a burst
CONTROL_PLANE = ("kube-scheduler", "kube-apiserver", "kube-controller-manager", "etcd")
SELF = "this client"
CLAIMS = [{"name": "net", "resourceClaimTemplateName": "one"}]
POD_SPEC: Object = {"resourceClaims": CLAIMS, "containers": [
    {"name": "one", "image": "none", "resources": {"claims": [{"name": "net"}]}}]}
VM_SPEC: Object = {"runStrategy": "Always", "template": {"spec": {"resourceClaims": CLAIMS, "domain": {"devices": {
    "hostDevices": [{"name": "nic0", "claimName": "net", "requestName": "nic"}]}}}}}
TERMS = Settings()  # of the Lease: as in production
LEASE = ("--lease-duration", f"{TERMS.lease_duration:g}s", "--renew-deadline", f"{TERMS.renew_deadline:g}s",
         "--retry-period", f"{TERMS.retry_period:g}s")
DEFAULT_RUN = ("500x8", "1000")
OURS = {"outfitter-controller", "outfitter-node"}  # clients of the API server
SELDOM = 0.01  # requests per object: fewer are not listed
MOST_SHOWN = 5  # problems
REST = 1800.0  # seconds within which all that a phase created is deleted
DELETED_AGAIN = 30.0  # seconds after which what is left is deleted once more: a busy server may have refused it
CREATED = (kinds.VM, kinds.POD)
LEFT = (kinds.VM, kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM)  # what must be gone before the next phase
Reached = Callable[[ClusterWatch], dict[str, float]]


@dataclass(slots=True)
class Phase:
    """One column of the table."""

    title: str
    count: int
    begun: datetime
    ended: datetime
    seconds: float = 0.0  # from the first creation until the last object was there
    took: list[float] = field(default_factory=list)  # of each object, in seconds
    lags: list[float] = field(default_factory=list)  # of device status, in seconds
    cpu: dict[str, float] = field(default_factory=dict)  # seconds, by process
    requests: dict[str, Counter[str]] = field(default_factory=dict)  # client -> verb and resource -> how many
    notes: list[str] = field(default_factory=list)


class Bench:
    """A control plane and the processes of one run."""

    def __init__(self, store: Kube, cluster: kubernetes.Cluster, roles: ClusterRoles, per_second: float) -> None:
        self._store, self._cluster, self._roles, self._per_second = store, cluster, roles, per_second
        self._runs: dict[str, RoleRun] = {}
        self.used: dict[str, ProcessUse] = {}  # until a process ended

    def start(self, role: str, name: str, *words: str) -> RoleRun:
        self._runs[name] = self._roles.start(role, *words, name=name).ready()
        return self._runs[name]

    def look(self) -> Mapping[str, ProcessUse]:
        self.used.update((name, ProcessUse.of(self._cluster.pid(name))) for name in CONTROL_PLANE)
        self.used.update((name, ProcessUse.of(run.process.pid)) for name, run in self._runs.items()
                         if run.process.poll() is None)
        self.used[SELF] = ProcessUse.of(os.getpid())
        return dict(self.used)

    async def measure(self, title: str, kind: Kind, count: int, reached: Reached,
                      midway: Callable[[], None] = lambda: None) -> Phase:
        """Create objects and wait until all have `reached` the end; `midway` is called when half of them have."""
        before, phase = self.look(), Phase(title, count, datetime.now(UTC), datetime.now(UTC))
        async with ClusterWatch(self._store) as seen:
            start = time.monotonic()
            creating = asyncio.create_task(self._create(kind, count, start))
            await seen.until(lambda: len(reached(seen)) >= count // 2, f"{count // 2} {title}")
            midway()
            created = await creating
            await seen.until(lambda: len(reached(seen)) == count, f"{count} {title}")
            phase.seconds, phase.ended, after = time.monotonic() - start, datetime.now(UTC), self.look()
            phase.took = [when - created[name] for name, when in reached(seen).items()]
            phase.lags = seen.device_status_lags()
            phase.cpu = {name: use.cpu - before.get(name, ProcessUse()).cpu for name, use in after.items()}
            if kind is kinds.VM:
                phase.notes += await self._check(seen)
        return phase

    async def _create(self, kind: Kind, count: int, start: float) -> dict[str, float]:
        """When the creation of each began."""
        created: dict[str, float] = {}
        spec = VM_SPEC if kind is kinds.VM else POD_SPEC

        async def client(names: Iterator[str]) -> None:
            for name in names:
                if self._per_second:
                    await asyncio.sleep(max(0.0, start + len(created) / self._per_second - time.monotonic()))
                created[name] = time.monotonic()
                await self._create_one(kind, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

        names = (f"vm-{number}" for number in range(count))
        await asyncio.gather(*(client(names) for _ in range(1 if self._per_second else CLIENTS)))
        return created

    async def _create_one(self, kind: Kind, obj: Object) -> None:
        """Until it is there: a server that is too busy may refuse it, or create it without an answer."""
        while True:
            try:
                await self._store.create(kind, obj)
            except Unavailable as error:
                await asyncio.sleep(error.retry_after)
            except AlreadyExists:
                return
            else:
                return

    async def _check(self, seen: ClusterWatch) -> list[str]:
        """What was done twice, and where allocations and pages differ, once the controllers have come to rest."""
        different = await seen.settled_differences()
        wrong = [*seen.twice(), *different, *self._roles.forbidden()]
        return [f"WRONG: {problem}" for problem in wrong[:MOST_SHOWN]] or ["nothing was done twice; pages equal allocations"]

    async def clear(self, grace: str = "") -> None:
        """Delete what a phase created, and wait until nothing is left of it."""
        async with asyncio.timeout(REST):
            while await self._left():
                for kind in CREATED:
                    names = iter([obj["metadata"]["name"] for obj in (await self._store.list(kind, "default")).items
                                  if not obj["metadata"].get("deletionTimestamp")])
                    await asyncio.gather(*(self._delete(kind, names, grace) for _ in range(CLIENTS)))
                again = time.monotonic() + DELETED_AGAIN
                while await self._left() and time.monotonic() < again:  # noqa: ASYNC110  # other processes delete
                    await asyncio.sleep(0.5)

    async def _left(self) -> bool:
        return any([(await self._store.list(kind, "default", limit=1)).items for kind in LEFT])

    async def _delete(self, kind: Kind, names: Iterator[str], grace: str) -> None:
        path = f"{'/apis/' + kind.group if kind.group else '/api'}/{kind.version}/namespaces/default/{kind.plural}"
        for name in names:
            with contextlib.suppress(Unavailable):  # what is left is deleted once more
                await self._store.raw("DELETE", f"{path}/{name}", query={"gracePeriodSeconds": grace} if grace else {})


async def run(shorthand: str, counts: tuple[int, int], per_second: float, folder: Path, cluster: kubernetes.Cluster) -> None:
    """`counts`: of pods and of VMs, and of the VMs whose leader is killed."""
    count, killed_count = counts
    roles = ClusterRoles(cluster, folder / "roles", real=True)
    clock = SystemClock()
    store = Kube(cluster.access(), clock=clock, user_agent="bench/1")
    bench = Bench(store, cluster, roles, per_second)
    try:
        await asyncio.to_thread(roles.install)
        await store.create(kinds.DEVICE_CLASS, CLASS)
        await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, TEMPLATE)
        bench.start("node", "node (publishing)", "--simulate", shorthand).stop()  # its nodes and slices stay
        phases = [await bench.measure("pods", kinds.POD, count, lambda seen: seen.bound)]
        report_phase(folder, phases[-1], bench.used)
        await bench.clear(grace="0")  # no kubelet runs that would end them
        first = bench.start("controller", "controller (leader)", *LEASE)
        first.until_said("the controllers run")
        second = bench.start("controller", "controller (standby)", *LEASE)
        bench.start("node", "node", "--simulate", shorthand)
        phases.append(await bench.measure("VMs", kinds.VM, count, lambda seen: seen.running))
        report_phase(folder, phases[-1], bench.used)
        await bench.clear()
        killed: list[datetime] = []

        def kill() -> None:
            bench.look()
            killed.append(datetime.now(UTC))
            first.kill()

        phases.append(await bench.measure("VMs, leader killed", kinds.VM, killed_count, lambda seen: seen.running, kill))
        phases[-1].notes.append(_takeover(second, killed[0]))
        report_phase(folder, phases[-1], bench.used)
        report(phases, bench.used)
    except BaseException:
        print(roles.logs(), file=sys.stderr)
        raise
    finally:
        await store.close()
        roles.stop()


def _takeover(standby: RoleRun, killed: datetime) -> str:
    """How long after the kill the other replica held the Lease, and its controllers worked."""
    standby.until_said("the controllers run")  # a few VMs may all run before it takes over
    when = {text: next((datetime.fromisoformat(line["time"]) - killed).total_seconds() for line in standby.lines()
                       if text in line["message"]) for text in (" holds ", "the controllers run")}
    return (f"the other replica held the Lease {when[' holds ']:.1f} s after the kill (lease {TERMS.lease_duration:g} s, "
            f"looked at every {TERMS.retry_period:g} s), and its controllers ran after {when['the controllers run']:.1f} s")


def report_phase(folder: Path, phase: Phase, used: Mapping[str, ProcessUse]) -> None:
    """What is known of a phase as soon as it is over: the log of its requests may be gone later."""
    for request in audit_log.requests(folder):
        if phase.begun <= request.received <= phase.ended and request.resource != "leases":
            phase.requests.setdefault(request.client, Counter())[f"{request.verb} {request.resource}"] += 1
    print(f"-- {phase.title}: {phase.count} in {phase.seconds:.0f} s of the clock")
    report([phase], used)


def report(phases: Sequence[Phase], used: Mapping[str, ProcessUse]) -> None:
    def row(name: str, cells: Sequence[str]) -> None:
        print(f"{name:44}" + "".join(f"{cell:>22}" for cell in cells))

    row("", [phase.title for phase in phases])
    row("per second of the clock", [f"{phase.count / phase.seconds:.1f}" for phase in phases])
    row("from created to bound or running, p50 / p99", [_spread(phase.took) for phase in phases])
    row("device-status lag, p50 / p99", [_spread(phase.lags) for phase in phases])
    for name in used:
        row(f"CPU ms each, {name}", [f"{phase.cpu[name] / phase.count * 1000:.1f}" if phase.cpu.get(name) else "-"
                                    for phase in phases])
    for client in sorted({client for phase in phases for client in phase.requests}):
        row(f"API requests each, {client}", [f"{phase.requests.get(client, Counter()).total() / phase.count:.2f}"
                                            for phase in phases])
    print("peak memory: " + ", ".join(f"{name} {use.peak:.0f} MB" for name, use in used.items()))
    for phase in phases:
        for client in OURS & phase.requests.keys():
            print(f"{phase.title}: requests each of {client}: " + ", ".join(
                f"{what} {number / phase.count:.2f}" for what, number in phase.requests[client].most_common()
                if number / phase.count >= SELDOM))
        for note in phase.notes:
            print(f"{phase.title}: {note}")
    sys.stdout.flush()


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    ordered = sorted(seconds)
    return " / ".join(f"{ordered[min(len(ordered) - 1, len(ordered) * part // 100)]:.2f} s" for part in (50, 99))


def main() -> None:
    words = sys.argv[1:] or DEFAULT_RUN
    if kubernetes.assets() is None:
        sys.exit(f"bench.cluster: {kubernetes.MISSING}")
    shorthand, count, per_second = words[0], int(words[1]), float(words[2]) if len(words) > 2 else 0.0
    killed_count = int(words[3]) if len(words) > 3 else count
    with tempfile.TemporaryDirectory(prefix="outfitter-bench-") as name:
        folder = Path(name)
        print(f"{shorthand}: {count} each, {f'{per_second:g} a second' if per_second else 'as fast as possible'}", flush=True)
        with (kubernetes.Cluster(folder / "kubernetes", scheduler=True, controllers=True, durable=True, learn=(),
                                 apiserver_flags=audit_log.flags(folder)) as cluster,
              asyncio.Runner(loop_factory=loop_factory()) as runner):
            runner.run(run(shorthand, (count, killed_count), per_second, folder, cluster))


if __name__ == "__main__":
    main()
