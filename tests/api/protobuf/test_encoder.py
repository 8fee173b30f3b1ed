from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outfitter.api.protobuf import encoder
from tests.api.protobuf import kubernetes_messages

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "blue", "uid": "u1", "labels": {"b": "2", "a": "1"}, "generation": 7,
                 "creationTimestamp": "2026-11-18T09:00:00Z", "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
    "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": -1, "hostNetwork": True,
        "containers": [{
            "name": "c", "image": "i", "command": ["a", "b"],
            "assignedDevices": [{"resourceName": "a.io/gpu", "deviceIDs": ["g0"]}],
            "resources": {"limits": {"a.io/gpu": "1", "cpu": "500m"}, "claims": [{"name": "net", "request": "up"}]},
            "livenessProbe": {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 3},
            "readinessProbe": {"tcpSocket": {"port": "http"}},
            "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
        "volumes": [{"name": "v", "configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}},
                    {"name": "e", "emptyDir": {}}],
        "tolerations": [{"key": "t", "tolerationSeconds": 300}]},
    "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": [{
        "name": "c", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-18T09:00:01Z"}},
        "allocatedResourcesStatus": [{"name": "a.io/gpu", "resources": [{"resourceID": "g0", "health": "Healthy"}]}]}]},
}


def test_bytes_of_a_small_pod() -> None:
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n", "hostNetwork": True}}
    assert encoder.encode("v1", "Pod", pod) == (
        b"\x0a\x06\x0a\x01p\x2a\x01u" b"\x12\x05\x52\x01n\x58\x01")


@pytest.mark.parts
def test_a_pod_is_read_with_the_published_definition() -> None:
    folder = kubernetes_messages.published_folder()
    if folder is None:
        pytest.skip("needs the published protobuf files of Kubernetes; scripts/kubelet-protos fetches them")
    message = kubernetes_messages.message_class(kubernetes_messages.published_pool(folder), "v1", "Pod")
    pod = message.FromString(encoder.encode("v1", "Pod", POD))
    assert (pod.metadata.name, pod.metadata.uid, dict(pod.metadata.labels)) == ("p", "u1", {"a": "1", "b": "2"})
    assert pod.metadata.creationTimestamp.seconds == datetime(2026, 11, 18, 9, tzinfo=UTC).timestamp()
    assert pod.metadata.managedFields[0].fieldsV1.Raw == b'{"f:spec":{}}'
    assert (pod.spec.nodeName, pod.spec.terminationGracePeriodSeconds, pod.spec.hostNetwork) == ("n1", -1, True)
    [container] = pod.spec.containers
    assert list(container.command) == ["a", "b"]
    assert {name: amount.string for name, amount in container.resources.limits.items()} == {"a.io/gpu": "1", "cpu": "500m"}
    assert container.resources.claims[0].request == "up"
    assert (container.livenessProbe.handler.httpGet.port.intVal, container.livenessProbe.periodSeconds) == (8080, 3)
    port = container.readinessProbe.handler.tcpSocket.port
    assert (port.type, port.strVal) == (1, "http")
    assert container.env[0].valueFrom.secretKeyRef.localObjectReference.name == "s"
    assert pod.spec.volumes[0].volumeSource.configMap.localObjectReference.name == "m"
    assert pod.spec.volumes[1].volumeSource.HasField("emptyDir")
    assert pod.spec.tolerations[0].tolerationSeconds == 300
    [status] = pod.status.containerStatuses
    assert status.allocatedResourcesStatus[0].resources[0].resourceID == "g0"
    assert status.state.running.startedAt.seconds - pod.metadata.creationTimestamp.seconds == 1
