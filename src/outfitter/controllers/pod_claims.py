"""Claims of pods, in embedded mode (a cluster has its own loop for this): made from templates, let go of when the pod is
over, and written again from the page when a status was lost."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.allocation import hosts as hosts_of
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs
from outfitter.api.page import Booking, Page, is_pool_page, pool_page
from outfitter.controllers import launcher_pod
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import AlreadyExists, Forbidden, Invalid, NotFound
from outfitter.ledger import book
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.scheduler import NOT_MADE, of_another
from outfitter.store.base import Replace, Write
from outfitter.store.informer import key_of, split_key
from outfitter.store.workqueue import WorkQueue

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"


class PodClaims:
    """Claims from templates: one for each entry of a pod that names a template."""

    name = "podclaims"

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._store = context, context.store
        self._pods = context.informer(kinds.POD)
        self.queue = WorkQueue(context.clock, age=self._pods.age)
        self._templates = context.informer(kinds.RESOURCE_CLAIM_TEMPLATE)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._pods.add_index("claim by template", _made_keys)
        enqueue_on_change(self._pods, self.queue, lambda pod: [key_of(pod)] if any(self._unmade(pod)) else [])
        enqueue_on_change(self._templates, self.queue, self._waiting_for)
        self._claims.on_change(self._claim_changed)

    def _claim_changed(self, old: Object | None, new: Object | None) -> None:
        """One that went is made again for who still waits for a host."""
        if new is None:
            for pod in self._pods.by("claim by template", key_of(old or {})):
                self.queue.add(key_of(pod))

    def _unmade(self, pod: Object) -> Iterator[Object]:
        """The entries of a pod of which a claim is still to be made, or to be made again: what a pod on a host uses stays."""
        if pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("phase") in device_refs.FINAL:
            return
        told, namespace = dict(device_refs.claim_names(pod)), pod["metadata"]["namespace"]
        for entry in _templated(pod):
            name = told.get(entry["name"])
            if not name or (not pod["spec"].get("nodeName") and self._claims.get(f"{namespace}/{name}") is None):
                yield entry

    def _waiting_for(self, template: Object) -> Sequence[str]:
        place = (template["metadata"]["namespace"], template["metadata"]["name"])
        return [key_of(pod) for pod in self._pods.items() if any(
            (pod["metadata"]["namespace"], entry.get("resourceClaimTemplateName")) == place
            for entry in pod["spec"].get("resourceClaims") or ())]

    async def reconcile(self, key: str) -> float | None:
        pod = self._pods.get(key)
        if pod is None:
            return None
        made: list[Object] = []
        taken: list[str] = []
        told = dict(device_refs.claim_names(pod))
        for entry in list(self._unmade(pod)):
            claim = await self._make(pod, entry)
            if claim is None:
                continue
            if whose := of_another(claim, pod):
                taken.append(whose)
                await self._context.events.warning(pod, NOT_MADE, whose)
            elif claim["metadata"]["name"] != told.get(entry["name"]):
                made.append({"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]})
        change: Object = {}
        if made:
            new = {entry["name"] for entry in made}
            have = pod["status"].get("resourceClaimStatuses") or ()
            change["resourceClaimStatuses"] = [*(one for one in have if one["name"] not in new), *made]
        if taken and not pod["spec"].get("nodeName"):  # the scheduler does not look at it before its claims are there
            why = Condition("PodScheduled", False, NOT_MADE, "; ".join(taken))
            change["conditions"] = conditions.with_condition(pod["status"].get("conditions"), why, self._context.now())
        if any(pod["status"].get(field) != value for field, value in change.items()):
            meta = pod["metadata"]  # at the revision that was read: by now another pod may have this name
            self._pods.put(await self._store.patch(kinds.POD, meta["name"], {
                "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": change,
            }, meta["namespace"], subresource="status"))
        return None

    async def _make(self, pod: Object, entry: Object) -> Object | None:
        """The claim of that name, which may be somebody else's; None while there is no template."""
        meta, template_name = pod["metadata"], entry["resourceClaimTemplateName"]
        template = self._templates.get(f"{meta['namespace']}/{template_name}")
        if template is None:
            await self._context.events.warning(pod, NOT_MADE,
                                               f"ResourceClaimTemplate {template_name} does not exist in {meta['namespace']}")
            return None
        extra = template["spec"].get("metadata") or {}
        stem, name = _made_name(pod, entry)
        claim = {
            "metadata": {
                "name": name, "generateName": stem, "namespace": meta["namespace"], "labels": extra.get("labels") or {},
                "annotations": {**(extra.get("annotations") or {}), POD_CLAIM: entry["name"]},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"],
                                     "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"]["spec"],
        }
        try:
            there = await self._store.create(kinds.RESOURCE_CLAIM, claim)
        except AlreadyExists:  # made before a crash, or by somebody else
            there = await self._store.get(kinds.RESOURCE_CLAIM, name, meta["namespace"])
        except (Invalid, Forbidden) as error:
            await self._context.events.warning(pod, NOT_MADE, error.message)
            raise
        self._claims.put(there)
        return there


class ClaimDeallocation:
    """Letting go: a claim that nobody uses any more gives its devices back, once the host has let go of them."""

    name = "claims"

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._store = context, context.store
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self.queue = WorkQueue(context.clock, age=self._claims.age)
        self._pods = context.informer(kinds.POD)
        self._pages = context.informer(kinds.LEDGER_PAGE)
        enqueue_on_change(self._claims, self.queue)
        enqueue_on_change(self._pods, self.queue, device_refs.claim_keys)
        self._pages.add_index("holder", _holder_uids)
        self._pages.add_index("claim", holders)
        self._pages.on_change(self._page_changed)

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        """Whoever has something else on the page than before."""
        had, has = _by_holder(old), _by_holder(new)
        for key in had | has:
            if had.get(key) != has.get(key):
                self.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        namespace, _ = split_key(key)
        known = self._claims.get(key)
        if known is None:
            await self._forget(key)
            return None
        status = known.get("status") or {}
        pages = self._pages_of(known)
        if not status.get("allocation"):
            if pages:
                await self._mend(known, pages)
            return None
        users = status.get("reservedFor") or []
        going = known["metadata"].get("deletionTimestamp")  # then a machine that keeps it, running or not, does so no longer
        left = [user for user in users if not (going and user.get("resource") == kinds.VM.plural)
                and await self._alive(namespace, user)]
        if left and left != users:
            await self._store.patch(kinds.RESOURCE_CLAIM, known["metadata"]["name"], {
                "metadata": {"resourceVersion": known["metadata"]["resourceVersion"]}, "status": {"reservedFor": left},
            }, namespace, subresource="status")
        elif not left and (users or known["metadata"].get("deletionTimestamp") or self._over(known)) \
                and not await self._kept(known):
            return await self._free(known, pages)  # what nobody ever used stays allocated, as in Kubernetes
        return None

    async def _kept(self, claim: Object) -> bool:
        """It belongs to a machine, which keeps its devices while it is stopped."""
        reference = device_refs.owner(claim, kinds.VM.kind)
        return reference is not None and not claim["metadata"].get("deletionTimestamp") and await self._alive(
            claim["metadata"]["namespace"], {**reference, "resource": kinds.VM.plural})

    async def _alive(self, namespace: str, user: Object) -> bool:
        """Asks the store: a pod that the informer has not seen yet is not a pod that is gone."""
        if user.get("resource") == kinds.VM.plural:
            try:
                vm = await self._store.get(kinds.VM, user["name"], namespace)
            except NotFound:
                return False
            return bool(vm["metadata"]["uid"] == user.get("uid") and not vm["metadata"].get("deletionTimestamp"))
        try:
            pod = await self._store.get(kinds.POD, user["name"], namespace)
        except NotFound:
            return False
        return bool(pod["metadata"]["uid"] == user.get("uid") and pod["status"].get("phase") not in device_refs.FINAL)

    def _pages_of(self, claim: Object) -> list[str]:
        """The pages on which a claim holds something: a host's, and those of pools that no host owns."""
        return sorted({page["metadata"]["name"] for page in self._pages.by("holder", claim["metadata"]["uid"])})

    def _over(self, claim: Object) -> bool:
        """The host has let go of everything that was booked."""
        uid = claim["metadata"]["uid"]
        mine = [booking for page in self._pages.by("holder", uid) for booking in Page(page).of(uid)]
        return bool(mine) and all(booking.state == "released" for booking in mine)

    async def _read(self, names: Sequence[str]) -> list[Page]:
        return [await book.read(self._store, name) for name in names]

    async def _free(self, claim: Object, names: Sequence[str]) -> float | None:
        """Pages, status and finalizer in one step; not while a host still has the devices prepared."""
        uid = claim["metadata"]["uid"]
        names = sorted({*names, *_promised_on(claim)})  # an informer that is behind would leave something booked
        pages = [page for page in await self._read(names) if page.of(uid)]
        if any(booking.state == "prepared" for page in pages for booking in page.of(uid)):
            return None  # the page will change when the host lets go
        emptied = {**claim, "status": {key: value for key, value in claim["status"].items()
                                       if key not in ("allocation", "reservedFor", "devices")}}
        writes: list[Write] = [Replace(kinds.RESOURCE_CLAIM, emptied, "status")]
        if FINALIZER in (claim["metadata"].get("finalizers") or ()):
            meta = {key: value for key, value in claim["metadata"].items() if key != "resourceVersion"}
            meta["finalizers"] = [name for name in meta["finalizers"] if name != FINALIZER]
            writes.append(Replace(kinds.RESOURCE_CLAIM, {**emptied, "metadata": meta}))
        if not pages:
            await self._store.commit(writes)
        else:
            await book.release_pages(self._store, [page.host for page in pages], uid, also=writes)
        return None

    async def _mend(self, claim: Object, names: Sequence[str]) -> None:
        """The page is the truth: a claim that lost its status gets it again, or is let go of when it is over."""
        current = await self._store.get(kinds.RESOURCE_CLAIM, claim["metadata"]["name"], claim["metadata"]["namespace"])
        if (current.get("status") or {}).get("allocation") or current["metadata"]["uid"] != claim["metadata"]["uid"]:
            return  # the news of that is on its way, and brings us back
        pages = await self._read(names)  # an informer that is behind would bring back what was let go
        uid, going = claim["metadata"]["uid"], bool(claim["metadata"].get("deletionTimestamp"))
        bookings = [booking for page in pages for booking in page.of(uid)]
        if going or all(booking.state == "released" for booking in bookings):
            # Decided on the page as it is when it is replaced: by then the claim may have been booked for its next pod.
            for name in names:
                await book.change_page(self._store, name, lambda now: _given_back(now, uid, going))
            return
        host = next((name for page in pages for name in _hosts(page, uid)), "")
        users = [user(pod) for pod in self._pods.items() if pod["spec"].get("nodeName") == host
                 and key_of(claim) in device_refs.claim_keys(pod) and pod["status"].get("phase") not in device_refs.FINAL]
        current["status"] = {**(current.get("status") or {}), "allocation": allocation(host, bookings),
                             **({"reservedFor": users} if users else {})}
        await self._store.replace(kinds.RESOURCE_CLAIM, current, subresource="status")
        await self._context.events.warning(claim, "AllocationRestored",
                                           f"the allocation was written again from page {', '.join(names)}")

    async def _forget(self, key: str) -> None:
        """The claim is gone: bookings that name it go too, unless a host still has them prepared."""
        namespace, name = split_key(key)
        for page in map(Page, self._pages.by("claim", key)):
            for booking in page.bookings:
                holder = booking.holder
                if (holder.kind, holder.namespace, holder.name) != (kinds.RESOURCE_CLAIM.kind, namespace, name):
                    continue
                try:
                    claim = await self._store.get(kinds.RESOURCE_CLAIM, name, namespace)
                except NotFound:
                    claim = None
                if claim is None or claim["metadata"]["uid"] != holder.uid:
                    await book.change_page(self._store, page.host, functools.partial(_given_back, uid=holder.uid, going=True))


def _templated(pod: Object) -> list[Object]:
    return [entry for entry in pod["spec"].get("resourceClaims") or () if entry.get("resourceClaimTemplateName")]


def _made_name(pod: Object, entry: Object) -> tuple[str, str]:
    """The name of the claim that is made for an entry, and what it begins with. The same for the same pod, so that making it
    twice makes it once."""
    meta = pod["metadata"]
    stem = f"{meta['name']}-{entry['name']}"[:247].rstrip("-.") + "-"
    return stem, stem + launcher_pod.suffix(meta["uid"], entry["name"])


def _made_keys(pod: Object) -> list[str]:
    return [f"{pod['metadata']['namespace']}/{_made_name(pod, entry)[1]}" for entry in _templated(pod)]


def _given_back(page: Page, uid: str, going: bool) -> Object:
    """The page without a claim that is over: the host has let go of all of it, or it is going and the host never had it."""
    mine = page.of(uid)
    over = all(booking.state != "prepared" if going else booking.state == "released" for booking in mine)
    return page.without(uid) if mine and over else page.object


def amount(result: Mapping[str, Any], counters: Mapping[str, Mapping[str, str]]) -> Object:
    """How much of its device a result of an allocation takes."""
    if result.get("adminAccess"):
        return {"adminAccess": True}  # looks on while others have it
    taken: Object = {"whole": True} if not result.get("shareID") else {
        "shareID": result["shareID"], "capacity": dict(result.get("consumedCapacity") or {})}
    return {**taken, **({"counters": {name: dict(each) for name, each in counters.items()}} if counters else {})}


def allocation(host: str, bookings: Sequence[Booking]) -> Object:
    """A claim's status as the page tells it."""
    results = [{"request": booking.request, "driver": booking.device.driver, "pool": booking.device.pool,
                "device": booking.device.device, **_share(booking.amount)} for booking in bookings
               if "resources" not in booking.amount]
    devices: Object = {"results": results}
    for booking in bookings:
        said = booking.amount
        if cells := flavor_claim.cells_config(said.get("guestCells") or (), said.get("cells") or {}, said.get("cpus") or {}):
            devices["config"] = cells
    return {"devices": devices, **({"nodeSelector": flavor_claim.on_host(host)} if host else {})}


def _share(amount: Mapping[str, Any]) -> Object:
    if amount.get("adminAccess"):
        return {"adminAccess": True}
    if not amount.get("shareID"):
        return {}
    return {"shareID": amount["shareID"], **({"consumedCapacity": amount["capacity"]} if amount.get("capacity") else {})}


def _hosts(page: Page, uid: str) -> list[str]:
    """Where what a holder has on a page is used."""
    return [page.host] if not is_pool_page(page.host) else [booking.node for booking in page.of(uid) if booking.node]


def _promised_on(claim: Object) -> set[str]:
    """The pages on which what a claim was given may stand."""
    given = claim["status"]["allocation"]
    pools = {pool_page(result["driver"], result["pool"]) for result in (given.get("devices") or {}).get("results") or ()}
    return pools | hosts_of(given)


def user(pod: Object) -> Object:
    """A pod as a claim's reservedFor names it."""
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


def holders(page: Object) -> Sequence[str]:
    """The keys of the claims that hold something on a page."""
    return list(_by_holder(page))


def _by_holder(page: Object | None) -> dict[str, list[Object]]:
    """The bookings of each claim on a page, by its key."""
    out: dict[str, list[Object]] = {}
    for booking in ((page or {}).get("spec") or {}).get("bookings") or ():
        holder = booking["holder"]
        if holder["kind"] == kinds.RESOURCE_CLAIM.kind:
            out.setdefault(f"{holder.get('namespace') or ''}/{holder['name']}", []).append(booking)
    return out


def _holder_uids(page: Object) -> Sequence[str]:
    return [booking["holder"]["uid"] for booking in (page.get("spec") or {}).get("bookings") or ()]
