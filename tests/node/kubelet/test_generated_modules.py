"""The generated modules are those of our .proto files, and our .proto files describe the same bytes as the published ones."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from outfitter.node.kubelet import proto
from tests.node.kubelet import kubelet_client
from tests.node.kubelet.kubelet_client import OURS, SCRIPT

FOLDER = Path(proto.__file__).parent
FIELD = re.compile(r"^  (?:repeated |optional )?([\w<>, ]+?) (\w+) = (\d+);", re.M)
Fields = dict[str, dict[str, int]]  # message -> field -> number


def described(file: bytes) -> Fields:
    messages = descriptor_pb2.FileDescriptorProto.FromString(file).message_type
    return {message.name: {field.name: field.number for field in message.field} for message in messages}


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.proto")))
def test_modules_have_the_fields_of_their_proto_files(name: str) -> None:
    written = {message: {field: int(number) for _, field, number in FIELD.findall(body)}
               for message, body in re.findall(r"^message (\w+) \{([^}]*)\}$", (FOLDER / name).read_text(), re.M | re.S)}
    [module] = [module for module in OURS.values() if module.DESCRIPTOR.name.endswith(f"/{name}")]
    assert described(module.DESCRIPTOR.serialized_pb) == written


@pytest.mark.parts
def test_modules_are_generated_from_the_proto_files(tmp_path: Path) -> None:
    run = subprocess.run([SCRIPT, "--generate-to", tmp_path], capture_output=True, text=True, check=False)
    if run.returncode:
        pytest.skip(f"needs grpcio-tools, which scripts/kubelet-protos installs: {run.stderr.strip()}")
    fresh = {path.name: path.read_text() for path in tmp_path.rglob("*_pb2.py*")}
    assert fresh == {path.name: path.read_text() for path in FOLDER.glob("*_pb2.py*")}


@pytest.mark.parts
def test_our_proto_files_describe_what_the_kubelet_sends() -> None:
    published = kubelet_client.published_definitions()
    if published is None:
        pytest.skip("needs the published protobuf files of the kubelet; scripts/kubelet-protos fetches them")

    def wire(file: bytes) -> tuple[object, ...]:
        read = descriptor_pb2.FileDescriptorProto.FromString(file)
        fields = {message.name: sorted((field.name, field.number, field.type, field.label, field.type_name,
                                        field.proto3_optional) for field in message.field) for message in read.message_type}
        values = [(enum.name, value.name, value.number) for enum in read.enum_type for value in enum.value]
        methods = [(service.name, method.name, method.input_type, method.output_type, method.server_streaming)
                   for service in read.service for method in service.method]
        return read.package, fields, sorted(methods), sorted(values)

    assert sorted(map(wire, kubelet_client.our_definitions()), key=str) == sorted(map(wire, published), key=str)
