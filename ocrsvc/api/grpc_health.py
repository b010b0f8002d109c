"""gRPC's standard health service (grpc.health.v1.Health): whether this worker serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ocrsvc.grpc_server.method import Call, CallFailed, Code, Method, Methods
from ocrsvc.grpc_server.protobuf import Messages

FILE: Final = "health.proto"
CHECK: Final = "/grpc.health.v1.Health/Check"
_SERVING, _NOT_SERVING = 1, 2


def make_health(messages: Messages, is_ready: Callable[[], bool], others: Methods) -> Methods:
    """The check, of the whole server or of one of the services that `others` are methods of."""
    response = messages["grpc.health.v1.HealthCheckResponse"]
    services = {path.split("/")[1] for path in others}

    def check(request: Any, _call: Call) -> Any:
        if request.service and request.service not in services:
            raise CallFailed(Code.NOT_FOUND, f"There is no service {request.service[:100]}.")
        return response(status=_SERVING if is_ready() else _NOT_SERVING)

    return {CHECK: Method(messages["grpc.health.v1.HealthCheckRequest"], check, quick=True)}
