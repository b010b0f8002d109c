"""The pipeline service of Paddle Serving over gRPC.

As over its HTTP gateway: what is wrong with an image is reported by err_no in a response, what is refused by the
status.
"""

from __future__ import annotations

from typing import Any, Final

from ocrsvc.adapters.context import GrpcService
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.adapters.paddle_serving.python_list import to_result
from ocrsvc.errors import CallerError, ClientGone, NothingSent
from ocrsvc.grpc_server.method import Call, Method, Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.http.base64text import decode_base64
from ocrsvc.records import ReadOptions
from ocrsvc.serving.memory_budget import Share

FILE: Final = "pipeline_serving.proto"
INFERENCE: Final = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
SERVICE: Final = "ocr"

_NO_SERVICE, _BAD_INPUT = 3002, 5000
_PACKAGE: Final = "baidu.paddle_serving.pipeline_serving."


def make_paddle_serving(messages: Messages, model: OcrModel) -> Methods:
    """The one method, over a model.

    Args:
        messages: With those of FILE.
        model: Reads the images.
    """
    response = messages[_PACKAGE + "Response"]

    def inference(request: Any, call: Call) -> Any:
        if request.name not in ("", SERVICE):
            return response(err_no=_NO_SERVICE, err_msg="Failed to inference: Service name error.")
        try:
            read = model.infer([_image(request, call.share)], ReadOptions(), call.left_s, call.context)
        except CallerError as error:
            if isinstance(error, ClientGone):
                raise
            return response(err_no=_BAD_INPUT, err_msg=str(error))
        return response(key=["result"], value=[to_result(read.pages[0])])

    return {INFERENCE: Method(messages[_PACKAGE + "Request"], inference)}


def _image(request: Any, share: Share) -> bytes:
    sent = dict(zip(request.key, request.value, strict=False))
    if "image" not in sent:
        raise NothingSent('There is no "image" among the keys.', 'Send key ["image"] and value ["<base64>"].')
    return decode_base64(sent["image"], share)


GRPC_SERVICE: Final = GrpcService((FILE,), make_paddle_serving)
