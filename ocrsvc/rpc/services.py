"""Which gRPC services are there?"""

from __future__ import annotations

from ocrsvc.rpc import health, kserve_v2, paddle_serving, tfserving
from ocrsvc.rpc.method import Methods
from ocrsvc.rpc.protobuf import Messages
from ocrsvc.web.model.ocr import OcrModel


def make_services(model: OcrModel) -> Methods:
    """All methods of all services over a model, by path."""
    messages = Messages(kserve_v2.FILE, *tfserving.FILES, paddle_serving.FILE, health.FILE)
    methods = {
        **kserve_v2.make_kserve_v2(messages, model),
        **tfserving.make_tfserving(messages, model),
        **paddle_serving.make_paddle_serving(messages, model),
    }
    return {**methods, **health.make_health(messages, model, methods)}
