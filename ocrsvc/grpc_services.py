"""The gRPC services: those of the adapters that are on, and the health check."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from ocrsvc.adapters.context import GrpcService
from ocrsvc.api import grpc_health
from ocrsvc.grpc_server.method import Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.model_api.model import OcrModel
from ocrsvc.registry import ADAPTERS, resolve

GRPC_ADAPTERS: Final = tuple(name for name, entry in ADAPTERS.items() if entry.grpc is not None)
"""The names of the adapters that speak gRPC."""


def make_services(model: OcrModel, adapters: Collection[str] = GRPC_ADAPTERS) -> Methods:
    """The methods of the adapters of these names, by path, and the health check, which is always there."""
    services: dict[str, GrpcService] = {
        name: resolve(entry.grpc) for name, entry in ADAPTERS.items() if entry.grpc is not None and name in adapters
    }
    files = (file for service in services.values() for file in service.files)
    messages = Messages(*files, grpc_health.FILE)
    methods = {
        path: replace(method, adapter=f"grpc_{name}")
        for name, service in services.items()
        for path, method in service.make(messages, model).items()
    }
    return {**methods, **grpc_health.make_health(messages, model, methods)}
