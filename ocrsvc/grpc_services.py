"""The gRPC services: those of the adapters that are on, and the health check."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ocrsvc.adapters.context import GrpcService
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.api import grpc_health
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.registry import adapters, resolve


def make_services(model: OcrModel, names: Collection[str] | None = None) -> Methods:
    """The methods of the adapters of these names, of all for None, by path, and the health check in any case."""
    services: dict[str, GrpcService] = {
        name: resolve(entry.grpc)
        for name, entry in adapters().items()
        if entry.grpc is not None and (names is None or name in names)
    }
    files = (file for service in services.values() for file in service.files)
    messages = Messages(*files, grpc_health.FILE)
    methods = {
        path: replace(method, adapter=f"grpc_{name}")
        for name, service in services.items()
        for path, method in service.make(messages, model).items()
    }
    return {**methods, **grpc_health.make_health(messages, lambda: model.ready, methods)}
