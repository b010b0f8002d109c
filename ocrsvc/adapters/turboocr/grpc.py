"""TurboOCR's gRPC service: responses carry the JSON of the HTTP API, trailers the error code."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from ocrsvc.adapters.context import CodedError, GrpcService
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.adapters.turboocr.answers import code_of, status_of, to_results
from ocrsvc.adapters.turboocr.documents import DocumentCall, answer_markdown, answer_pdf, batch_answer
from ocrsvc.adapters.turboocr.http import RESPONSE_MODE, capabilities_of
from ocrsvc.adapters.turboocr.parameters import DocumentParameters, document_parameters, page_parameters, to_image_file
from ocrsvc.errors import NotReady, OcrsvcError
from ocrsvc.grpc_server.method import Call, Method, Methods
from ocrsvc.grpc_server.protobuf import Messages

FILE: Final = "turboocr.proto"
SERVICE: Final = "/ocr.OCRService/"

_DATA: Final = frozenset({"image", "images", "pixels", "pdf_data", "width", "height", "channels", "det_batch_num"})
_PAGE_MEMBERS: Final = ("width", "height", "dpi", "mode", "text_layer_quality")


def make_turboocr(messages: Messages, model: OcrModel) -> Methods:
    """Make TurboOCR's gRPC methods."""
    service = _Service(messages, model)
    answers = (
        ("Recognize", "OCRRequest", service.recognize),
        ("RecognizeBatch", "OCRBatchRequest", service.recognize_batch),
        ("RecognizePDF", "OCRPDFRequest", service.recognize_pdf),
        ("RecognizeMarkdown", "OCRMarkdownRequest", service.recognize_markdown),
        ("Health", "HealthRequest", service.health),
    )

    def error_fields(error: BaseException) -> Mapping[str, str]:
        """The trailer with TurboOCR's code; exceptions other than OcrsvcError have none."""
        return {"x-error-code": code_of(error)} if isinstance(error, OcrsvcError) else {}

    return {
        SERVICE + name: Method(
            messages[f"ocr.{request}"], _original_errors(answer), quick=name == "Health", error_fields=error_fields
        )
        for name, request, answer in answers
    }


def _original_errors(answer: Callable[[Any, Call], Any]) -> Callable[[Any, Call], Any]:
    """Wrap a method so that its errors for an unreadable file have TurboOCR's error code."""

    def answered(request: Any, call: Call) -> Any:
        try:
            return answer(request, call)
        except OcrsvcError as error:
            # Raise `failure` after this block, so that Python does not chain it to `error`, often the same object.
            is_same = status_of(error) == error.status
            failure = error if is_same else CodedError(code_of(error), error.detail, error.remedy)
        raise failure

    return answered


class _Service:
    """TurboOCR's gRPC methods, which read images with the reader of `model`."""

    def __init__(self, messages: Messages, model: OcrModel) -> None:
        self._messages, self._reader = messages, model.reader

    def recognize(self, request: Any, call: Call) -> Any:
        parameters, data = page_parameters(_parameters_of(request)), bytes(request.image)
        if request.pixels:
            data = to_image_file(request.pixels, (request.width, request.height, request.channels or 3), call.share)
        if not data:
            raise CodedError("MISSING_IMAGE", "The request has neither image nor pixels.")
        page = self._reader.read(data, parameters.read_options(), call.left_s, call.context).page
        return self._page_response(to_results(page, parameters))

    def recognize_batch(self, request: Any, call: Call) -> Any:
        parameters = page_parameters(_parameters_of(request))
        if not request.images:
            raise CodedError("EMPTY_BATCH", "The request has no images.")
        outcomes = self._reader.read_many(list(request.images), parameters.read_options(), call.left_s, call.context)
        results = [self._page_response(entry, error or "") for entry, error in batch_answer(outcomes, parameters)]
        return self._messages["ocr.OCRBatchResponse"](batch_results=results, total_images=len(results))

    def recognize_pdf(self, request: Any, call: Call) -> Any:
        parameters = document_parameters(_parameters_of(request))
        if not request.pdf_data:
            raise CodedError("MISSING_PDF", "The request has no pdf_data.")
        answer = answer_pdf(self._call(request.pdf_data, parameters, call))
        response, page = self._messages["ocr.OCRPDFResponse"], self._messages["ocr.OCRPageResult"]
        if parameters.form == "pdf":
            return response(document=answer.file, degraded=answer.degraded)
        if parameters.form == "md":
            markdown = orjson.dumps({"pages": answer.pages}) if parameters.as_pages else answer.file
            return response(markdown=markdown.decode(), degraded=answer.degraded)
        pages = []
        for members in answer.pages:
            about = {name: members[name] for name in _PAGE_MEMBERS}
            pages.append(page(page_number=members["page"], json_response=orjson.dumps(members), **about))
        return response(pages=pages)

    def recognize_markdown(self, request: Any, call: Call) -> Any:
        if not request.image:
            raise CodedError("MISSING_IMAGE", "The request has no image.")
        answer = answer_markdown(self._call(request.image, DocumentParameters(), call))
        return self._messages["ocr.OCRMarkdownResponse"](markdown=answer.file.decode())

    def health(self, _request: Any, _call: Call) -> Any:
        if not self._reader.ready:
            raise NotReady("Pipeline not ready.")
        document = orjson.dumps(capabilities_of(self._reader.settings)).decode()
        response = self._messages["ocr.HealthResponse"]
        return response(status="ok", response_mode=RESPONSE_MODE, capabilities_json=document)

    def _call(self, data: bytes, parameters: DocumentParameters, call: Call) -> DocumentCall:
        return DocumentCall(self._reader, bytes(data), parameters, call.deadline, call.context)

    def _page_response(self, answer: dict[str, Any], error: str = "") -> Any:
        return self._messages["ocr.OCRResponse"](
            num_detections=len(answer["results"]),
            json_response=orjson.dumps(answer),
            reading_order=answer.get("reading_order", ()),
            error=error,
        )


def _parameters_of(request: Any) -> dict[str, object]:
    """The fields that are set in a message, named as the HTTP parameters."""
    fields = {field.name: value for field, value in request.ListFields() if field.name not in _DATA}
    return fields | ({"text": False} if fields.pop("layout_only", False) else {})


GRPC_SERVICE: Final = GrpcService((FILE,), make_turboocr)
