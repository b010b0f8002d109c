"""TurboOCR's service over gRPC: its answers carry the JSON of the HTTP answers, its trailers the code of an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from ocrsvc.adapters.context import GrpcService
from ocrsvc.adapters.model_protocols.ocr_model import OcrModel
from ocrsvc.adapters.turboocr.batch_answers import batch_answer, check_some_read
from ocrsvc.adapters.turboocr.capabilities import RESPONSE_MODE, capabilities_of
from ocrsvc.adapters.turboocr.document_files import (
    MARKDOWN_OPTIONS,
    degraded_by,
    markdown_pages,
    to_markdown,
    to_pdf,
    whole_markdown,
)
from ocrsvc.adapters.turboocr.documents import DocumentCall, read_pdf, to_pages
from ocrsvc.adapters.turboocr.failures import Coded, as_original, code_of
from ocrsvc.adapters.turboocr.page_values import to_results
from ocrsvc.adapters.turboocr.parameters import (
    PLAIN_DOCUMENT,
    OutputParameters,
    document_parameters,
    output_parameters,
    page_parameters,
)
from ocrsvc.adapters.turboocr.pixels import to_image_file
from ocrsvc.errors import NotReady, OcrsvcError
from ocrsvc.grpc_server.method import Call, Method, Methods
from ocrsvc.grpc_server.protobuf import Messages
from ocrsvc.pipeline.documents import FileRead
from ocrsvc.pipeline.read import Reader

FILE: Final = "turboocr.proto"
SERVICE: Final = "/ocr.OCRService/"

Answer = Callable[[Any, Call], Any]


def make_turboocr(messages: Messages, model: OcrModel) -> Methods:
    """The methods, over a model's reader.

    Args:
        messages: With those of FILE.
        model: Its reader reads.
    """
    reader = model.reader

    def method(name: str, request: str, answer: Answer, *, quick: bool = False) -> tuple[str, Method]:
        kind = messages[f"ocr.{request}"]
        return SERVICE + name, Method(kind, _with_original_errors(answer), quick, error_fields=_error_fields)

    return dict(
        (
            method("Recognize", "OCRRequest", _recognize(messages, reader)),
            method("RecognizeBatch", "OCRBatchRequest", _recognize_batch(messages, reader)),
            method("RecognizePDF", "OCRPDFRequest", _recognize_pdf(messages, reader)),
            method("RecognizeMarkdown", "OCRMarkdownRequest", _recognize_markdown(messages, reader)),
            method("Health", "HealthRequest", _health(messages, reader), quick=True),
        )
    )


def _with_original_errors(answer: Answer) -> Answer:
    def answered(request: Any, call: Call) -> Any:
        try:
            return answer(request, call)
        except OcrsvcError as error:
            # Outside the block: an error that is its own cause would be walked through without end.
            failure = as_original(error)
        raise failure

    return answered


def _error_fields(error: BaseException) -> Mapping[str, str]:
    """The original's code for an error of ours; to others the status is all there is to say."""
    return {"x-error-code": code_of(error)} if isinstance(error, OcrsvcError) else {}


def _recognize(messages: Messages, reader: Reader) -> Answer:
    response = messages["ocr.OCRResponse"]

    def recognize(request: Any, call: Call) -> Any:
        asked = page_parameters(_parameters_of(request))
        data = _image_of(request, call)
        page = reader.read(data, asked.read_options(), call.left_s, call.context).page
        return _page_response(response, to_results(page, asked))

    return recognize


def _image_of(request: Any, call: Call) -> bytes:
    """The image file, or the bare pixels as one. Raises Coded, and what the share does."""
    if request.pixels:
        size = (request.width, request.height, request.channels or 3)
        return to_image_file(request.pixels, size, call.share)
    if not request.image:
        raise Coded("MISSING_IMAGE", "The request has neither image nor pixels.")
    return bytes(request.image)


def _page_response(response: Any, answer: dict[str, Any], error: str = "") -> Any:
    return response(
        num_detections=len(answer["results"]),
        json_response=orjson.dumps(answer),
        reading_order=answer.get("reading_order", ()),
        error=error,
    )


def _recognize_batch(messages: Messages, reader: Reader) -> Answer:
    page, response = messages["ocr.OCRResponse"], messages["ocr.OCRBatchResponse"]

    def recognize_batch(request: Any, call: Call) -> Any:
        asked = page_parameters(_parameters_of(request))
        if not request.images:
            raise Coded("EMPTY_BATCH", "The request has no images.")
        outcomes = reader.read_many(list(request.images), asked.read_options(), call.left_s, call.context)
        check_some_read(outcomes)
        entries = zip(*batch_answer(outcomes, asked), strict=True)
        results = [_page_response(page, entry, error or "") for entry, error in entries]
        return response(batch_results=results, total_images=len(results))

    return recognize_batch


def _recognize_pdf(messages: Messages, reader: Reader) -> Answer:
    page, response = messages["ocr.OCRPageResult"], messages["ocr.OCRPDFResponse"]

    def recognize_pdf(request: Any, call: Call) -> Any:
        sent = _parameters_of(request)
        asked, output = document_parameters(sent), output_parameters(sent)
        if not request.pdf_data:
            raise Coded("MISSING_PDF", "The request has no pdf_data.")
        whole = DocumentCall(reader, bytes(request.pdf_data), asked, call.deadline, call.context)
        read = read_pdf(whole, output.form)
        if output.form == "pdf":
            document = to_pdf(whole, read, output.min_confidence)
            return response(document=document, degraded=degraded_by(read))
        if output.form == "md":
            return response(markdown=_markdown(whole, read, output), degraded=degraded_by(read))
        return response(pages=[_document_page(page, answer) for answer in to_pages(whole, read)])

    return recognize_pdf


def _markdown(whole: DocumentCall, read: FileRead, output: OutputParameters) -> str:
    """That of the document, or, of its pages, the JSON of the HTTP answer."""
    if output.as_pages:
        return orjson.dumps({"pages": markdown_pages(whole, read)}).decode()
    return whole_markdown(whole, read)


def _recognize_markdown(messages: Messages, reader: Reader) -> Answer:
    response = messages["ocr.OCRMarkdownResponse"]

    def recognize_markdown(request: Any, call: Call) -> Any:
        if not request.image:
            raise Coded("MISSING_IMAGE", "The request has no image.")
        whole = DocumentCall(reader, bytes(request.image), PLAIN_DOCUMENT, call.deadline, call.context)
        reading = reader.read(whole.file, MARKDOWN_OPTIONS, call.left_s, call.context)
        return response(markdown=to_markdown(whole, [reading.page], reading.engine))

    return recognize_markdown


def _document_page(message: Any, answer: dict[str, Any]) -> Any:
    return message(
        page_number=answer["page"],
        width=answer["width"],
        height=answer["height"],
        dpi=answer["dpi"],
        mode=answer["mode"],
        text_layer_quality=answer["text_layer_quality"],
        json_response=orjson.dumps(answer),
    )


def _health(messages: Messages, reader: Reader) -> Answer:
    response = messages["ocr.HealthResponse"]

    def health(_request: Any, _call: Call) -> Any:
        if not reader.ready:
            raise NotReady("Pipeline not ready.")
        document = orjson.dumps(capabilities_of(reader.settings)).decode()
        return response(status="ok", response_mode=RESPONSE_MODE, capabilities_json=document)

    return health


def _parameters_of(request: Any) -> dict[str, object]:
    """What a message says of how to read, under the names that HTTP has for it; what it leaves out is not there."""
    sent = {field.name: value for field, value in request.ListFields() if field.name not in _DATA}
    if sent.pop("layout_only", False):
        sent["text"] = False
    return sent


_DATA: Final = frozenset({"image", "images", "pixels", "pdf_data", "width", "height", "channels", "det_batch_num"})

GRPC_SERVICE: Final = GrpcService((FILE,), make_turboocr)
