"""Checksums of the kubelet's checkpoint were computed with Go and the printer that the kubelet uses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfitter.node.device_manager import checkpoint
from outfitter.node.device_manager.checkpoint import CheckpointProblem, DamagedCheckpoint, DeviceCheckpoint, PodDevicesEntry

ONE = DeviceCheckpoint(
    (PodDevicesEntry("3c1e0f6a-0000-4000-8000-000000000001", "c", "a.io/gpu", {-1: ("g2",), 0: ("g0", "g1")},
                     bytes([10, 6, 10, 1, 65, 18, 1, 49])),),
    {"a.io/gpu": ("g0", "g1", "g2"), "a.io/nic": ()})
KUBELET_WROTE = {
    "no devices": ({"PodDeviceEntries": None, "RegisteredDevices": {}}, 3467439661),
    "an empty list instead of null": ({"PodDeviceEntries": [], "RegisteredDevices": None}, 3252601439),
    "every null, order and character": ({
        "PodDeviceEntries": [
            {"PodUID": "u", "ContainerName": "c", "ResourceName": "r/x", "DeviceIDs": None, "AllocResp": None},
            {"PodUID": "ü", "ContainerName": "c d", "ResourceName": "r/x", "DeviceIDs": {"10": ["a"], "2": None, "-1": []},
             "AllocResp": ""}],
        "RegisteredDevices": {"b": None, "a": ["x", "<&>"], "B": ["\u0001"]}}, 3965862374),
}


def test_checksum_is_the_kubelets() -> None:
    assert json.loads(checkpoint.encode(ONE)) == {
        "Data": {
            "PodDeviceEntries": [{
                "PodUID": "3c1e0f6a-0000-4000-8000-000000000001", "ContainerName": "c", "ResourceName": "a.io/gpu",
                "DeviceIDs": {"-1": ["g2"], "0": ["g0", "g1"]}, "AllocResp": "CgYKAUESATE="}],
            "RegisteredDevices": {"a.io/gpu": ["g0", "g1", "g2"], "a.io/nic": []}},
        "Checksum": 904595110}
    assert json.loads(checkpoint.encode(DeviceCheckpoint()))["Checksum"] == 3467439661


@pytest.mark.parametrize(("data", "checksum"), KUBELET_WROTE.values(), ids=KUBELET_WROTE.keys())
def test_a_file_of_the_kubelet_is_read(data: dict[str, Any], checksum: int) -> None:
    read = checkpoint.decode(json.dumps({"Data": data, "Checksum": checksum}))
    assert isinstance(read, DeviceCheckpoint), read
    assert [entry.pod_uid for entry in read.entries] == [entry["PodUID"] for entry in data["PodDeviceEntries"] or ()]
    assert isinstance(checkpoint.decode(json.dumps({"Data": data, "Checksum": checksum + 1})), DamagedCheckpoint)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
entries = st.builds(PodDevicesEntry, texts, texts, texts,
                    st.dictionaries(st.integers(-1, 99), st.lists(texts, max_size=3).map(tuple), max_size=3),
                    st.binary(max_size=9))


@given(st.builds(DeviceCheckpoint, st.lists(entries, max_size=3).map(tuple),
                 st.dictionaries(texts, st.lists(texts, max_size=2).map(tuple), max_size=3)))
def test_what_is_written_is_read_again(written: DeviceCheckpoint) -> None:
    assert checkpoint.decode(checkpoint.encode(written)) == written


def changed(**fields: Any) -> str:
    whole = json.loads(checkpoint.encode(ONE))
    whole["Data"]["PodDeviceEntries"][0].update(fields)
    return json.dumps(whole)


DAMAGED = {
    "torn": (checkpoint.encode(ONE)[:100], CheckpointProblem.NOT_JSON, "kubelet_internal_checkpoint"),
    "empty": ("", CheckpointProblem.NOT_JSON, "kubelet_internal_checkpoint"),
    "bytes that are no text": (b"\xff\xfe\x00{", CheckpointProblem.NOT_JSON, "kubelet_internal_checkpoint"),
    "deeply nested": ("[" * 100_000, CheckpointProblem.NOT_JSON, "kubelet_internal_checkpoint"),
    "a list": ("[]", CheckpointProblem.MALFORMED, "object"),
    "another file": ('{"policyName":"none","checksum":1}', CheckpointProblem.MALFORMED, "Data"),
    "one id changed": (checkpoint.encode(ONE).replace('"g1"]', '"g7"]', 1), CheckpointProblem.CHECKSUM, "904595110"),
    "a kubelet before 1.20": (changed(DeviceIDs=["g0", "g1"]), CheckpointProblem.OTHER_VERSION, "1.20"),
    "no container": (changed(ContainerName=None), CheckpointProblem.MALFORMED, "PodDeviceEntries[0].ContainerName"),
    "a NUMA node that is no number": (changed(DeviceIDs={"x": []}), CheckpointProblem.MALFORMED, "'x'"),
    "ids that are no texts": (changed(DeviceIDs={"0": [1]}), CheckpointProblem.MALFORMED, "DeviceIDs[0]"),
    "no base64": (changed(AllocResp="%"), CheckpointProblem.MALFORMED, "AllocResp"),
}


@pytest.mark.parametrize(("text", "problem", "names"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_has_a_reason(text: str | bytes, problem: CheckpointProblem, names: str) -> None:
    read = checkpoint.decode(text)
    assert isinstance(read, DamagedCheckpoint)
    assert read.problem == problem
    assert names in read.message
