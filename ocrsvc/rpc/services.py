"""Which gRPC services are there?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from ocrsvc.rpc import health, kserve_v2, paddle_serving, tfserving
from ocrsvc.rpc.method import Methods
from ocrsvc.rpc.protobuf import Messages
from ocrsvc.web.model.ocr import OcrModel

MAKERS: Final[Mapping[str, Callable[[Messages, OcrModel], Methods]]] = {
    "kserve_v2": kserve_v2.make_kserve_v2,
    "tfserving": tfserving.make_tfserving,
    "paddle_serving": paddle_serving.make_paddle_serving,
}
"""By the name of the dialect that switches them on."""


def make_services(model: OcrModel, dialects: Collection[str] = tuple(MAKERS)) -> Methods:
    """The methods of the services whose dialects are on, by path, and the health check, which always is."""
    messages = Messages(kserve_v2.FILE, *tfserving.FILES, paddle_serving.FILE, health.FILE)
    methods = {
        path: replace(method, door=f"grpc_{dialect}")
        for dialect, make in MAKERS.items()
        if dialect in dialects
        for path, method in make(messages, model).items()
    }
    return {**methods, **health.make_health(messages, model, methods)}
