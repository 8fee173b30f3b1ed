"""Authorizes requests by SubjectAccessReview: kube-apiserver decides by its own authorizers (RBAC). Its answers are kept for a
few seconds, as aggregated API servers do."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from outfitter.api.kinds import Kind, Object
from outfitter.apiserver import auth
from outfitter.apiserver.auth import User
from outfitter.apiserver.paths import RequestPath
from outfitter.errors import Forbidden, Unavailable
from outfitter.store.clock import Clock

SUBJECT_ACCESS_REVIEW = Kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False)
KEPT = 10.0  # seconds
MOST_KEPT = 4096

Review = Callable[[Object], Awaitable[Object]]  # creates a SubjectAccessReview; the answer has its status


@contextlib.contextmanager
def own_rights() -> Iterator[None]:
    """What kube-apiserver refuses to this process is not refused to the user."""
    try:
        yield
    except Forbidden as error:
        raise Unavailable(f"outfit webhook lacks a right: {error.message}; outfit install --apply grants it") from error


@dataclass(frozen=True, slots=True)
class AccessDecision:
    until: float
    allowed: bool
    reason: str  # why not, if the authorizer gives a reason


class SubjectAccess:
    def __init__(self, review: Review, clock: Clock) -> None:
        self._review, self._clock = review, clock
        self._kept: dict[tuple[User, str, RequestPath], AccessDecision] = {}  # the oldest first

    async def authorize(self, user: User, verb: str, target: RequestPath) -> None:
        """Forbidden, in Kubernetes' words. Unavailable: it could not be decided."""
        question = user, verb, target
        decision = self._kept.get(question)
        if decision is None or decision.until <= self._clock.monotonic():
            decision = await self._ask(user, verb, target)
            self._keep(question, decision)
        if not decision.allowed:
            raise auth.forbidden(user, verb, target, decision.reason)

    async def _ask(self, user: User, verb: str, target: RequestPath) -> AccessDecision:
        spec: Object = {
            "user": user.name, "uid": user.uid, "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra},
            "resourceAttributes": {"namespace": target.namespace, "verb": verb, "group": target.group,
                                   "version": target.version, "resource": target.kind.plural,
                                   "subresource": target.subresource, "name": target.name},
        }
        review: Object = {"metadata": {}, "spec": {key: value for key, value in spec.items() if value}}
        with own_rights():
            try:
                answer = await self._review(review)
            except Unavailable:  # it changes nothing, so it may be asked twice
                answer = await self._review(review)
        status = answer.get("status") or {}
        return AccessDecision(self._clock.monotonic() + KEPT, status.get("allowed") is True, str(status.get("reason") or ""))

    def _keep(self, question: tuple[User, str, RequestPath], decision: AccessDecision) -> None:
        self._kept.pop(question, None)
        self._kept[question] = decision
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
