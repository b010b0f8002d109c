"""The gRPC methods of the enabled adapters, and gRPC's health check."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final

from ocrsvc.adapters.context import GrpcService
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.grpc_server.method import Call, CallFailed, Code, Method, Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.plugins import adapters, resolve

HEALTH_FILE: Final = "health.proto"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_SERVING, _NOT_SERVING = 1, 2


def make_services(model: OcrModel, names: Collection[str] | None = None) -> Methods:
    """The gRPC methods by path: those of the adapters in `names`, or of all adapters, and the health check."""
    services: dict[str, GrpcService] = {
        name: resolve(entry.grpc)
        for name, entry in adapters().items()
        if entry.grpc is not None and (names is None or name in names)
    }
    files = (file for service in services.values() for file in service.files)
    messages = Messages(*files, HEALTH_FILE)
    methods = {
        path: replace(method, adapter=f"grpc_{name}")
        for name, service in services.items()
        for path, method in service.make(messages, model).items()
    }
    return {**methods, HEALTH_CHECK: _health_check(messages, lambda: model.ready, methods)}


def _health_check(messages: Messages, is_ready: Callable[[], bool], others: Methods) -> Method:
    """gRPC's standard health check, for the whole server or for one service that has methods in `others`."""
    response = messages["grpc.health.v1.HealthCheckResponse"]
    services = {path.split("/")[1] for path in others}

    def check(request: Any, _call: Call) -> Any:
        if request.service and request.service not in services:
            raise CallFailed(Code.NOT_FOUND, f"There is no service {request.service[:100]}.")
        return response(status=_SERVING if is_ready() else _NOT_SERVING)

    return Method(messages["grpc.health.v1.HealthCheckRequest"], check, quick=True)
