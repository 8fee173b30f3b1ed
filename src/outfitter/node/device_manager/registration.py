"""The socket at which device plugins register: `device-plugins/kubelet.sock`. At the start the other sockets of the folder are
removed: plugins see that and register again, as they do with a kubelet that was restarted."""

from __future__ import annotations

import contextlib
import stat
from typing import Any

import grpc

from outfitter.errors import OutfitterError, StartupRefused
from outfitter.node.device_manager.device_manager import FOLDER, DeviceManager
from outfitter.node.kubelet.proto import device_plugin_v1beta1_pb2 as pb
from outfitter.node.kubelet.unix_server import UnixServer

SERVICE = "v1beta1.Registration"
SOCKET = "kubelet.sock"
STOP_GRACE = 1.0  # seconds for calls in progress


class RegistrationServer:
    def __init__(self, manager: DeviceManager) -> None:
        self._manager, self._folder = manager, manager.folder / FOLDER
        register: Any = grpc.unary_unary_rpc_method_handler(
            self._register, request_deserializer=pb.RegisterRequest.FromString,
            response_serializer=lambda answer: answer.SerializeToString())
        self._server = UnixServer(self._folder / SOCKET, [
            grpc.method_handlers_generic_handler(SERVICE, {"Register": register})])

    async def start(self) -> None:
        """StartupRefused: the socket cannot be created."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o750)
            for path in self._folder.iterdir():
                if stat.S_ISSOCK(path.lstat().st_mode):
                    with contextlib.suppress(FileNotFoundError):
                        path.unlink()
        except OSError as error:
            raise StartupRefused(f"the folder {self._folder} cannot be used: {error}; use another --kubelet-dir") from error
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(STOP_GRACE)

    async def _register(self, request: Any, context: Any) -> Any:
        try:
            await self._manager.register(request.version, request.resource_name, request.endpoint)
        except OutfitterError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, error.message)
        return pb.Empty()
