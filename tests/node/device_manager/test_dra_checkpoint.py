from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from outfitter.node.device_manager import dra_checkpoint
from outfitter.node.device_manager.checkpoint import CheckpointProblem, DamagedCheckpoint
from outfitter.node.device_manager.dra_checkpoint import ClaimDeviceState, ClaimInfoState

CLAIM = ClaimInfoState("u1", "nets", "blue", frozenset({"p1", "p2"}), {
    "net.d.io": (ClaimDeviceState("n1", "d0", ("up",), ("net.d.io/dev=d0",)),
                 ClaimDeviceState("n1", "d1", ("down",), (), "share-1")),
    "gpu.d.io": ()})


def file(data: Any) -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())})


def test_a_file_has_the_kubelets_form() -> None:
    whole = json.loads(dra_checkpoint.encode((CLAIM,)))
    assert whole["Checksum"] == zlib.crc32(whole["Data"].encode())
    assert json.loads(whole["Data"]) == {
        "kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": [{
            "ClaimUID": "u1", "ClaimName": "nets", "Namespace": "blue", "PodUIDs": {"p1": {}, "p2": {}},
            "DriverState": {
                "net.d.io": {"Devices": [
                    {"PoolName": "n1", "DeviceName": "d0", "ShareID": None, "RequestNames": ["up"],
                     "CDIDeviceIDs": ["net.d.io/dev=d0"]},
                    {"PoolName": "n1", "DeviceName": "d1", "ShareID": "share-1", "RequestNames": ["down"],
                     "CDIDeviceIDs": []}]},
                "gpu.d.io": {"Devices": []}}}]}


def test_what_is_written_is_read_again() -> None:
    assert dra_checkpoint.decode(dra_checkpoint.encode((CLAIM,))) == (CLAIM,)
    assert dra_checkpoint.decode(dra_checkpoint.encode(())) == ()


def test_nulls_of_the_kubelet_are_empty() -> None:
    data = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": [
        {"ClaimUID": "u", "ClaimName": "c", "Namespace": "n", "PodUIDs": None, "DriverState": {"d": {"Devices": None}}}]}
    assert dra_checkpoint.decode(file(data)) == (ClaimInfoState("u", "c", "n", frozenset(), {"d": ()}),)
    assert dra_checkpoint.decode(file({**data, "ClaimInfoStateList": None})) == ()


WHOLE = dra_checkpoint.encode((CLAIM,))
DAMAGED = {
    "torn": (WHOLE[:50], CheckpointProblem.NOT_JSON, "dra_manager_state"),
    "one id changed": (WHOLE.replace("d1", "d9", 1), CheckpointProblem.CHECKSUM, "checksum"),
    "another version": (file({"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v9"}),
                        CheckpointProblem.OTHER_VERSION, "v9"),
    "content that is torn": (file('{"kind"'), CheckpointProblem.NOT_JSON, "dra_manager_state"),
    "a claim that is a text": (file({"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
                                     "ClaimInfoStateList": ["x"]}), CheckpointProblem.MALFORMED, "ClaimInfoStateList[0]"),
    "no content": ('{"Checksum":0}', CheckpointProblem.MALFORMED, "Data"),
}


@pytest.mark.parametrize(("text", "problem", "names"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_has_a_reason(text: str, problem: CheckpointProblem, names: str) -> None:
    read = dra_checkpoint.decode(text)
    assert isinstance(read, DamagedCheckpoint)
    assert read.problem == problem
    assert names in read.message
