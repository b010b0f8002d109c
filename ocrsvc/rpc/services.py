"""Which gRPC services are there?"""

from __future__ import annotations

from ocrsvc.rpc import health, kserve_v2
from ocrsvc.rpc.method import Methods
from ocrsvc.rpc.protobuf import Messages
from ocrsvc.web.model.ocr import OcrModel


def make_services(model: OcrModel) -> Methods:
    """All methods of all services over a model, by path."""
    messages = Messages(kserve_v2.FILE, health.FILE)
    methods = dict(kserve_v2.make_kserve_v2(messages, model))
    return methods | health.make_health(messages, model, methods)
