"""Which gRPC services are there?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from ocrsvc.adapters.kserve import v2_grpc
from ocrsvc.adapters.paddle_serving import grpc as paddle_serving_grpc
from ocrsvc.adapters.tfserving import grpc as tfserving_grpc
from ocrsvc.api import grpc_health
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.model_api.model import OcrModel

MAKERS: Final[Mapping[str, Callable[[Messages, OcrModel], Methods]]] = {
    "kserve_v2": v2_grpc.make_kserve_v2,
    "tfserving": tfserving_grpc.make_tfserving,
    "paddle_serving": paddle_serving_grpc.make_paddle_serving,
}
"""By the name of the dialect that switches them on."""


def make_services(model: OcrModel, dialects: Collection[str] = tuple(MAKERS)) -> Methods:
    """The methods of the services whose dialects are on, by path, and the health check, which always is."""
    messages = Messages(v2_grpc.FILE, *tfserving_grpc.FILES, paddle_serving_grpc.FILE, grpc_health.FILE)
    methods = {
        path: replace(method, adapter=f"grpc_{dialect}")
        for dialect, make in MAKERS.items()
        if dialect in dialects
        for path, method in make(messages, model).items()
    }
    return {**methods, **grpc_health.make_health(messages, model, methods)}
