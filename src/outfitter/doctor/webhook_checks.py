"""Checks of the admission webhook in a cluster: its configurations, their CA bundle, and its certificate. Pure; called by
`installation_checks`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from datetime import timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from outfitter.api.kinds import Object
from outfitter.doctor.cluster_state import CERTIFICATE, WEBHOOK, ClusterState
from outfitter.doctor.finding import Finding, error, ok, some, warning
from outfitter.doctor.reading import is_ours

APPLY = "outfit install --apply"
SOON = timedelta(days=2)
TIME = "%Y-%m-%dT%H:%M:%SZ"
CONFIGURATIONS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")


def check(state: ClusterState) -> list[Finding]:
    return [*_configurations(state), *_certificate(state)]


def _configurations(state: ClusterState) -> Iterator[Finding]:
    if not state.known(*CONFIGURATIONS):
        return
    absent = [f"{plural}/outfitter" for plural in CONFIGURATIONS if not state.items(plural)]
    without = [f"{plural}/outfitter" for plural in CONFIGURATIONS for obj in state.items(plural)
               if any(not (hook.get("clientConfig") or {}).get("caBundle") for hook in obj.get("webhooks") or ())]
    open_ = [hook["name"] for obj in state.items(CONFIGURATIONS[0]) for hook in obj.get("webhooks") or ()
             if hook.get("failurePolicy", "Fail") == "Ignore"]  # the mutating one fills in defaults only, and may be away
    if absent:
        do = "does" if len(absent) == 1 else "do"
        yield error("cluster-webhook", f"{some(absent)} {do} not exist: nothing is checked at admission.",
                    "Apply the webhook configurations.", APPLY)
    if without:
        yield error("cluster-webhook", f"no CA bundle in {some(without)}: the API server refuses every write of their kinds.",
                    "outfit webhook writes it; see whether it runs and may patch the configurations.",
                    f"kubectl -n {state.namespace} logs deployment/{WEBHOOK}")
    if open_:
        yield warning("cluster-webhook", f"the failure policy of {some(open_)} is Ignore.",
                      "While the webhook is away, objects are stored unchecked; the manifests have Fail.", APPLY)
    if not absent and not without and not open_:
        yield ok("cluster-webhook", "both webhook configurations have a CA bundle")


def _certificate(state: ClusterState) -> Iterator[Finding]:
    if not state.known("secrets"):
        return
    secret = next(iter(state.items("secrets")), None)
    kubectl = f"kubectl -n {state.namespace}"
    renew = f"{kubectl} delete secret {CERTIFICATE}; {APPLY}; {kubectl} rollout restart deployment {WEBHOOK}"
    name = f"the Secret {CERTIFICATE}"
    if secret is None:
        yield error("cluster-webhook-certificate", f"{name} does not exist.", "outfit webhook fills it.", APPLY)
        return
    data = secret.get("data") or {}
    certificates = {key: found for key in ("tls.crt", "ca.crt") if (found := _pem(data.get(key)))}
    serving = certificates.get("tls.crt", [None])[0]
    if serving is None:
        yield error("cluster-webhook-certificate", f"{name} has no certificate in tls.crt.",
                    "outfit webhook creates it; see whether it runs and may write the Secret.",
                    f"kubectl -n {state.namespace} logs deployment/{WEBHOOK}")
        return
    bad = False
    for key, (certificate, *_) in certificates.items():
        until = certificate.not_valid_after_utc
        if until <= state.now:
            bad = True
            yield error("cluster-webhook-certificate", f"{key} of {name} expired at {until:{TIME}}.",
                        "The API server refuses every write of the webhook's kinds; have a new certificate made.", renew)
        elif certificate.not_valid_before_utc > state.now:
            bad = True
            yield error("cluster-webhook-certificate", f"{key} of {name} is not valid before "
                        f"{certificate.not_valid_before_utc:{TIME}}.", "Correct the clocks, or have a new one made.", renew)
        elif until - state.now < SOON:
            bad = True
            yield warning("cluster-webhook-certificate", f"{key} of {name} expires at {until:{TIME}} and was not renewed.",
                          "See whether outfit webhook runs and may write the Secret.",
                          f"kubectl -n {state.namespace} logs deployment/{WEBHOOK}")
    for plural in (*CONFIGURATIONS, "apiservices"):
        if any(not any(_signed(serving, issuer) for issuer in bundle) for bundle in _bundles(state.items(plural))):
            bad = True
            yield error("cluster-webhook-certificate", f"the CA bundle of {plural} does not sign its certificate.",
                        "outfit webhook writes the bundle; see whether it may patch it.",
                        f"kubectl -n {state.namespace} rollout restart deployment {WEBHOOK}", subject=plural)
    if not bad:
        yield ok("cluster-webhook-certificate", f"the certificate is valid until {serving.not_valid_after_utc:{TIME}}")


def _bundles(objects: Sequence[Object]) -> Iterator[list[x509.Certificate]]:
    for obj in objects:
        if not is_ours(obj):
            continue  # of KubeVirt, whose companion we are
        hooks = [hook.get("clientConfig") or {} for hook in obj.get("webhooks") or ()] or [obj.get("spec") or {}]
        for text in sorted({hook["caBundle"] for hook in hooks if hook.get("caBundle")}):
            yield _pem(text)


def _pem(text: str | None) -> list[x509.Certificate]:
    """The certificates in PEM, in base64 as the API has it; none where it is something else."""
    try:
        return x509.load_pem_x509_certificates(base64.b64decode(text or ""))
    except (ValueError, binascii.Error):
        return []


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
