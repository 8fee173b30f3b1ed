"""The Deployments of controller and webhook, the DaemonSet of the node agent, and what they mount. Nothing runs privileged;
what a container may do is stated here and nowhere else. Flags are those of docs/roles.md."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from outfitter.api.kinds import Object
from outfitter.install import names
from outfitter.install.names import InstallOptions

CONFIG_FILE = PurePosixPath("/etc/outfitter/config.yaml")
HEALTH = 8080
MIGRATION_PORT = 8450  # of the node agent, open while a VM arrives
SERVICE_PORT = 443
STILL_SERVES = 5  # seconds
WEBHOOK_PORT = 8443  # of the container; 443 of the Service
USER = 65532  # "nonroot" of the images
# Folders of the host that the node agent uses, by their name in the pod, and how the kubelet checks them.
HOST_PATHS: dict[str, tuple[str, str]] = {
    "sys": ("/sys", "Directory"),  # drivers are bound and VFs created here
    "vfio": ("/dev/vfio", "DirectoryOrCreate"),
    "kubelet-plugins": ("/var/lib/kubelet/plugins", "DirectoryOrCreate"),  # our socket
    "kubelet-registry": ("/var/lib/kubelet/plugins_registry", "DirectoryOrCreate"),  # where the kubelet finds it
    "kubelet-device-plugins": ("/var/lib/kubelet/device-plugins", "DirectoryOrCreate"),  # the device plugin, if it is on
    "kubelet-pod-resources": ("/var/lib/kubelet/pod-resources", "DirectoryOrCreate"),  # which pod has its devices
    "kubelet-pods": ("/var/lib/kubelet/pods", "Directory"),  # sockets of launchers
    "cdi": ("/var/run/cdi", "DirectoryOrCreate"),  # what the container runtime gives to launchers
    "run": ("/var/run/outfitter", "DirectoryOrCreate"),  # device metadata files
    "state": ("/var/lib/outfitter", "DirectoryOrCreate"),  # what was changed on the host; survives a reboot
}
# Root without privileges, besides: to read which process has a device open (SYS_PTRACE, with hostPID), and to use files and
# sockets that belong to others (DAC_OVERRIDE, FOWNER, CHOWN).
NODE_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SYS_PTRACE")
RESTRICTED: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
NODE_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "privileged": False,
    "runAsUser": 0,
    "capabilities": {"drop": ["ALL"], "add": list(NODE_CAPABILITIES)},
    "seccompProfile": {"type": "RuntimeDefault"},
    "appArmorProfile": {"type": "Unconfined"},  # the runtime's profile denies writes below /sys
    "seLinuxOptions": {"type": "spc_t"},  # the same of SELinux; of no effect without it
}
# On a simulated node nothing really runs: calls of a webhook there would fail.
REAL_NODES: Object = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": names.SIMULATED, "operator": "NotIn", "values": ["true"]}]}
            ]
        }
    }
}


def objects(options: InstallOptions) -> list[Object]:
    return [
        config_map(options),
        certificate(options),
        service(options),
        _deployment(
            "controller", {**_container("controller", _companion(options), options), "env": _launcher(options)}, options
        ),
        _deployment("webhook", _webhook(options), options),
        _disruption_budget("controller", options),
        _disruption_budget("webhook", options),
        _daemon_set(options),
    ]


def namespace(options: InstallOptions) -> Object:
    meta = names.metadata(options.namespace)
    meta["labels"]["pod-security.kubernetes.io/enforce"] = "privileged"  # the node agent uses folders of the host
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


def config_map(options: InstallOptions) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(names.CONFIG, namespace=options.namespace),
        "data": {"config.yaml": options.config},
    }


def certificate(options: InstallOptions) -> Object:
    """Empty: the webhook fills it in, and has no right to create Secrets."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": names.metadata(names.CERTIFICATE, "webhook", namespace=options.namespace),
    }


def service(options: InstallOptions) -> Object:
    """Of a webhook outside the cluster: a name for its host, as an APIService has no URL."""
    if options.webhook_url:
        spec: Object = {"type": "ExternalName", "externalName": urlsplit(options.webhook_url).hostname}
    else:
        spec = {
            "selector": _selector("webhook"),
            "ports": [{"name": "webhook", "port": SERVICE_PORT, "targetPort": "webhook", "protocol": "TCP"}],
        }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata("webhook", options), "spec": spec}


def _deployment(role: str, container: Object, options: InstallOptions) -> Object:
    spec: Object = {
        **_pod(role),
        "priorityClassName": "system-cluster-critical",
        "volumes": _shared_volumes(),
        "containers": [{**container, "securityContext": RESTRICTED, "volumeMounts": _shared_mounts()}],
        "affinity": {
            **REAL_NODES,
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": _selector(role)},
                        },
                    }
                ]
            }
        },
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(role, options),
        "spec": {
            "replicas": options.replicas,
            "selector": {"matchLabels": _selector(role)},
            "template": _template(role, spec, options),
        },
    }


def _daemon_set(options: InstallOptions) -> Object:
    own_name = {"name": "OUTFITTER_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    own_address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    migrations = {"name": "OUTFITTER_MIGRATION_ADDRESS", "value": f"[$(POD_IP)]:{MIGRATION_PORT}"}
    container = {
        **_container("node", _companion(options), options, {} if options.companion else {"migration": MIGRATION_PORT}),
        "env": [own_name, *([] if options.companion else [own_address, migrations])],
        "securityContext": NODE_SECURITY,
        "volumeMounts": [
            *_shared_mounts(),
            *({"name": name, "mountPath": path, **_propagation(name)} for name, (path, _) in HOST_PATHS.items()),
        ],
    }
    spec: Object = {
        **_pod("node"),
        "priorityClassName": "system-node-critical",
        "hostPID": True,
        "containers": [container],
        "volumes": [
            *_shared_volumes(),
            *({"name": name, "hostPath": {"path": path, "type": type_}} for name, (path, type_) in HOST_PATHS.items()),
        ],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "affinity": REAL_NODES,
        "tolerations": [{"operator": "Exists"}],  # VMs that run on a tainted node still need their agent
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata("node", options),
        "spec": {
            "selector": {"matchLabels": _selector("node")},
            "template": _template("node", spec, options),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        },
    }


def _companion(options: InstallOptions) -> list[str]:
    return ["--companion"] if options.companion else []


def _container(role: str, flags: Sequence[str], options: InstallOptions, ports: Mapping[str, int] | None = None) -> Object:
    def probe(path: str, **more: int) -> Object:
        return {"httpGet": {"path": path, "port": "health"}, **more}

    return {
        "name": role,
        "image": options.image,
        "imagePullPolicy": options.image_pull_policy,
        "args": [
            role,
            f"--config={CONFIG_FILE}",
            "--log-format=json",
            f"--namespace={options.namespace}",
            f"--health-address=:{HEALTH}",
            *flags,
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in {**(ports or {}), "health": HEALTH}.items()],
        "livenessProbe": probe("/healthz", initialDelaySeconds=10, periodSeconds=10, failureThreshold=6),
        "readinessProbe": probe("/readyz", periodSeconds=5),
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
    }


def _webhook(options: InstallOptions) -> Object:
    """When it is stopped it goes on until every API server knows that its endpoint is gone: a write that is sent to one that
    does not listen any more is refused."""
    return {**_container("webhook", [f"--address=:{WEBHOOK_PORT}"], options, {"webhook": WEBHOOK_PORT}),
            "lifecycle": {"preStop": {"sleep": {"seconds": STILL_SERVES}}}}


def _launcher(options: InstallOptions) -> list[Object]:
    """What the launcher pods run, which the controller creates."""
    return [
        {"name": "OUTFITTER_LAUNCHER_IMAGE", "value": options.launcher_image},
        {"name": "OUTFITTER_LAUNCHER_PULL_POLICY", "value": options.image_pull_policy},
    ]


def _pod(role: str) -> Object:
    return {"serviceAccountName": f"outfitter-{role}", "terminationGracePeriodSeconds": 30}


def _template(role: str, spec: Object, options: InstallOptions) -> Object:
    """With a digest of the configuration, so that a change of it restarts the pods."""
    digest = hashlib.sha256(options.config.encode()).hexdigest()[:16]
    return {"metadata": {"labels": names.labels(role), "annotations": {"outfitter.dev/config": digest}}, "spec": spec}


def _disruption_budget(role: str, options: InstallOptions) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(role, options),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _selector(role)}},
    }


def _metadata(role: str, options: InstallOptions) -> Object:
    return names.metadata(f"outfitter-{role}", role, namespace=options.namespace)


def _selector(role: str) -> dict[str, str]:
    return {names.COMPONENT: role, "app.kubernetes.io/part-of": "outfitter"}


def _shared_volumes() -> list[Object]:
    return [{"name": "config", "configMap": {"name": names.CONFIG}}, {"name": "tmp", "emptyDir": {}}]


def _shared_mounts() -> list[Object]:
    return [{"name": "config", "mountPath": str(CONFIG_FILE.parent), "readOnly": True}, {"name": "tmp", "mountPath": "/tmp"}]


def _propagation(name: str) -> Object:
    """Folders of pods that start later are mounted on the host after this container started."""
    return {"mountPropagation": "HostToContainer"} if name == "kubelet-pods" else {}
