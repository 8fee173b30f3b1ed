"""The webhook configurations and the APIServices by which the API server calls `outfit webhook`. The CA is not here: the
webhook writes it into these objects, and an installation that is applied again leaves it."""

from __future__ import annotations

from urllib.parse import urlsplit

from outfitter.api.kinds import Object
from outfitter.api.served import aggregated_apis
from outfitter.install import names
from outfitter.install.names import InstallOptions
from outfitter.install.workloads import SERVICE_PORT
from outfitter.webhook import rules

ADMISSION = "admissionregistration.k8s.io/v1"


def objects(options: InstallOptions) -> list[Object]:
    return [
        *(_api_service(*served, options) for served in (
            aggregated_apis.STATUS if options.companion else aggregated_apis.SERVED)),
        *(_configuration(mutating, options) for mutating in (False, True)),
    ]


def _configuration(mutating: bool, options: InstallOptions) -> Object:
    def client(path: str) -> Object:
        if options.webhook_url:
            return {"url": options.webhook_url.rstrip("/") + path}
        return {"service": {"namespace": options.namespace, "name": names.WEBHOOK, "path": path, "port": SERVICE_PORT}}

    return {
        "apiVersion": ADMISSION,
        "kind": f"{'Mutating' if mutating else 'Validating'}WebhookConfiguration",
        "metadata": names.metadata(names.WEBHOOK_CONFIGURATION, "webhook"),
        "webhooks": rules.entries(options.namespace, client, mutating=mutating, companion=options.companion),
    }


def _api_service(group: str, version: str, options: InstallOptions) -> Object:
    port = urlsplit(options.webhook_url or "").port or SERVICE_PORT
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": names.metadata(aggregated_apis.api_service(group, version), "webhook"),
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 1000,
            "versionPriority": 15 if version == "v1" else 14,
            "service": {"namespace": options.namespace, "name": names.WEBHOOK, "port": port},
        },
    }
