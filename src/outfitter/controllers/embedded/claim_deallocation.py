"""Deallocates claims in embedded mode (a cluster has its own controller for this): a claim that no pod uses any more gives its
devices back, once the host has released them. One that was made for a pod which has ended is deleted then."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from outfitter.api import allocation, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.ledger_page.page import Page, is_pool_page, pool_page
from outfitter.api.ledger_page.page_entries import changed_claims, claim_keys, well_formed
from outfitter.controllers.embedded.pod_claims import FINALIZER, user
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import NotFound
from outfitter.ledger import book
from outfitter.store.base import Delete, Replace, Write
from outfitter.store.informer import key_of, split_key
from outfitter.store.workqueue import WorkQueue


class ClaimDeallocation:
    """A claim without users is deallocated once the host has released its devices. A claim that lost its status gets it again
    from the page."""

    name = "claim_deallocation"
    kind = kinds.RESOURCE_CLAIM  # of its keys

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._store = context, context.store
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self.queue = WorkQueue(context.clock, age=self._claims.age)
        self._pods = context.informer(kinds.POD)
        self._pages = context.informer(kinds.LEDGER_PAGE)
        enqueue_on_change(self._claims, self.queue)
        self._claims.add_index("user", _user_keys)
        enqueue_on_change(self._pods, self.queue, self._claims_of)
        self._pages.add_index("holder", _holder_uids)
        self._pages.add_index("claim", claim_keys)
        self._pages.on_change(self._page_changed)

    def _claims_of(self, pod: Object) -> list[str]:
        """The claims that a pod names, and those that are reserved for it."""
        return [*pod_claims.claim_keys(pod), *map(key_of, self._claims.by("user", key_of(pod)))]

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        """The claims whose bookings on the page changed."""
        for key in changed_claims(old, new):
            self.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        namespace, _ = split_key(key)
        known = self._claims.get(key)
        if known is None:
            await self._forget(key)
            return None
        status = known.get("status") or {}
        pages = self._pages_of(known)
        going = known["metadata"].get("deletionTimestamp")  # then no VM keeps it any more, running or not
        if not status.get("allocation"):
            if pages:
                await self._mend(known, pages)
            elif going and _protected(known):  # what protects it protects nothing; the store decides at this revision
                await self._context.patch_metadata(kinds.RESOURCE_CLAIM, known, {"finalizers": _unprotected(known) or None})
            elif not going and self._of_ended_pod(known):  # as in Kubernetes: the pod's object may stay for a while
                await self._store.delete(kinds.RESOURCE_CLAIM, known["metadata"]["name"], namespace,
                                         uid=known["metadata"]["uid"])
            return None
        users = status.get("reservedFor") or []
        left = [user for user in users if not (going and user.get("resource") == kinds.VM.plural)
                and await self._alive(namespace, user)]
        if left and left != users:
            await self._context.patch_status(kinds.RESOURCE_CLAIM, known, {"reservedFor": left})
        elif not left and (users or going or self._over(known)) \
                and not await self._kept(known):
            return await self._free(known, pages)  # a claim that was never used stays allocated, as in Kubernetes
        elif not pages and not any(user.get("resource") == "pods" for user in left) and await self._kept(known) \
                and not any(page.of(known["metadata"]["uid"]) for page in await self._read(sorted(_possible_pages_of(known)))):
            return await self._free(known, pages)  # its host went for good, and its page with what a stopped VM kept there
        return None

    def _of_ended_pod(self, claim: Object) -> bool:
        """Whether the claim was made for a pod that has ended."""
        reference = vm_api.owner(claim, kinds.POD.kind)
        pod = self._pods.get(f"{claim['metadata']['namespace']}/{reference['name']}") if reference is not None else None
        return pod is not None and reference is not None and pod["metadata"]["uid"] == reference["uid"] and (
            (pod.get("status") or {}).get("phase") in vm_api.FINAL)

    async def _kept(self, claim: Object) -> bool:
        """A VM owns it, and keeps its devices while it is stopped."""
        reference = vm_api.owner(claim, kinds.VM.kind)
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
        if user.get("apiGroup") or user.get("resource", kinds.POD.plural) != kinds.POD.plural:
            return True  # a consumer of another controller, which takes its entry out itself, as in Kubernetes
        try:
            pod = await self._store.get(kinds.POD, user["name"], namespace)
        except NotFound:
            return False
        return bool(pod["metadata"]["uid"] == user.get("uid") and pod["status"].get("phase") not in vm_api.FINAL)

    def _pages_of(self, claim: Object) -> list[str]:
        """The pages on which a claim holds something: a host's, and those of pools that no host owns."""
        return sorted({page["metadata"]["name"] for page in self._pages.by("holder", claim["metadata"]["uid"])})

    def _over(self, claim: Object) -> bool:
        """The host has released everything that was booked."""
        uid = claim["metadata"]["uid"]
        mine = [booking for page in self._pages.by("holder", uid) for booking in Page(page).of(uid)]
        return bool(mine) and all(booking.state == "released" for booking in mine)

    async def _read(self, names: Sequence[str]) -> list[Page]:
        return [await book.read(self._store, name) for name in names]

    async def _free(self, claim: Object, names: Sequence[str]) -> float | None:
        """Pages, status and finalizer in one step; not while a host still has the devices prepared."""
        uid = claim["metadata"]["uid"]
        names = sorted({*names, *_possible_pages_of(claim)})  # an informer that is behind would leave something booked
        pages = [page for page in await self._read(names) if page.of(uid)]
        if any(booking.state == "prepared" for page in pages for booking in page.of(uid)):
            return None  # the page changes when the host releases them
        emptied = {**claim, "status": {key: value for key, value in claim["status"].items()
                                       if key not in ("allocation", "reservedFor", "devices")}}
        writes: list[Write] = [Replace(kinds.RESOURCE_CLAIM, emptied, "status")]
        if _protected(claim):
            meta = {key: value for key, value in claim["metadata"].items() if key != "resourceVersion"}
            meta["finalizers"] = _unprotected(claim)
            writes.append(Replace(kinds.RESOURCE_CLAIM, {**emptied, "metadata": meta}))
        if not claim["metadata"].get("deletionTimestamp") and self._of_ended_pod(claim):
            writes.append(Delete(kinds.RESOURCE_CLAIM, claim["metadata"]["name"], claim["metadata"]["namespace"], uid=uid))
        if not pages:
            await self._store.commit(writes)
        else:
            await book.release_pages(self._store, [page.host for page in pages], uid, also=writes)
        return None

    async def _mend(self, claim: Object, names: Sequence[str]) -> None:
        """The page is the truth: a claim that lost its status gets it again, or is released when it has ended."""
        current = await self._store.get(kinds.RESOURCE_CLAIM, claim["metadata"]["name"], claim["metadata"]["namespace"])
        if (current.get("status") or {}).get("allocation") or current["metadata"]["uid"] != claim["metadata"]["uid"]:
            return  # the watch update of that brings the key back
        pages = await self._read(names)  # an informer that is behind would restore what was released
        uid, going = claim["metadata"]["uid"], bool(claim["metadata"].get("deletionTimestamp"))
        bookings = [booking for page in pages for booking in page.of(uid)]
        if going or all(booking.state == "released" for booking in bookings):
            # Decided on the page as it is when it is replaced: by then the claim may have been booked for its next pod.
            for name in names:
                await book.change_page(self._store, name, lambda now: _given_back(now, uid, going))
            return
        host = next((name for page in pages for name in _hosts(page, uid)), "")
        users = [user(pod) for pod in self._pods.items() if pod["spec"].get("nodeName") == host
                 and key_of(claim) in pod_claims.claim_keys(pod) and pod["status"].get("phase") not in vm_api.FINAL]
        current["status"] = {**(current.get("status") or {}), "allocation": allocation.restored(host, bookings),
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


def _protected(claim: Object) -> bool:
    return FINALIZER in (claim["metadata"].get("finalizers") or ())


def _unprotected(claim: Object) -> list[str]:
    """The finalizers of a claim that are not ours."""
    return [name for name in claim["metadata"].get("finalizers") or () if name != FINALIZER]


def _given_back(page: Page, uid: str, going: bool) -> Object:
    """The page without a claim that has ended: the host has released all of it, or it is being deleted and the host never
    prepared it."""
    mine = page.of(uid)
    ended = all(booking.state != "prepared" if going else booking.state == "released" for booking in mine)
    return page.without(uid) if mine and ended else page.object


def _hosts(page: Page, uid: str) -> list[str]:
    """Where what a holder has on a page is used."""
    return [page.host] if not is_pool_page(page.host) else [booking.node for booking in page.of(uid) if booking.node]


def _possible_pages_of(claim: Object) -> set[str]:
    """The pages on which a claim's allocation may be booked."""
    given = claim["status"]["allocation"]
    pools = {pool_page(result["driver"], result["pool"]) for result in (given.get("devices") or {}).get("results") or ()}
    return pools | allocation.hosts(given)


def _holder_uids(page: Object) -> Sequence[str]:
    return [bookings[0].holder.uid for bookings in well_formed(page)]


def _user_keys(claim: Object) -> list[str]:
    """The pods for which a claim is reserved."""
    return [f"{claim['metadata']['namespace']}/{user['name']}" for user in (claim.get("status") or {}).get("reservedFor") or ()
            if user.get("resource", kinds.POD.plural) == kinds.POD.plural]
