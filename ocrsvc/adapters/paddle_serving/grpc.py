"""Paddle Serving's pipeline service over gRPC: client errors are reported in err_no, others in the gRPC status."""

from typing import Any, Final

from ocrsvc.adapters.context import DEFAULT_OPTIONS, GrpcService
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.adapters.paddle_serving.http import BAD_INPUT, NO_SERVICE, NO_SERVICE_TEXT, image_in, to_result
from ocrsvc.errors import CallerError, ClientGone
from ocrsvc.grpc_server.method import Call, Method, Methods
from ocrsvc.grpc_server.protobuf import Messages

FILE: Final = "pipeline_serving.proto"
INFERENCE: Final = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"

_PACKAGE: Final = "baidu.paddle_serving.pipeline_serving."


def make_paddle_serving(messages: Messages, model: OcrModel) -> Methods:
    """Make the service's only method, `inference`."""
    response = messages[_PACKAGE + "Response"]

    def inference(request: Any, call: Call) -> Any:
        if request.name not in ("", "ocr"):
            return response(err_no=NO_SERVICE, err_msg=NO_SERVICE_TEXT)
        try:
            data = image_in(request.key, request.value, call.share)
            read = model.infer([data], DEFAULT_OPTIONS, call.left_s, call.context)
        except ClientGone:
            raise
        except CallerError as error:
            return response(err_no=BAD_INPUT, err_msg=str(error))
        return response(key=["result"], value=[to_result(read.pages[0])])

    return {INFERENCE: Method(messages[_PACKAGE + "Request"], inference)}


GRPC_SERVICE: Final = GrpcService((FILE,), make_paddle_serving)
