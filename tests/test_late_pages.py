"""A deadline that passes between two pages fails the whole answer in every format, unless `partial` is set."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import pytest
from documents import GRAY, pdf
from flask.testing import FlaskClient
from grpc_support import MESSAGES, V2, infer_request, model_over, served, unary
from image_support import png
from support import data_of, filled
from web_support import KnownEngine, as_base64, json_of, running_reader, texts

from ocrsvc.app import create_app
from ocrsvc.errors import DeadlineExceeded, OcrsvcError
from ocrsvc.grpc_services import make_services
from ocrsvc.pipeline.read import Reader
from ocrsvc.plugins import adapters
from ocrsvc.results import Page, ReadTask
from ocrsvc.settings.settings import Settings

WIDE, NARROW = png(64, 32), png(48, 32)
DOCUMENT = pdf(GRAY, GRAY, GRAY)
IMAGES = [as_base64(WIDE), as_base64(NARROW)]


class LateEngine(KnownEngine):
    """Reads the first page of each request; all others miss the deadline."""

    read_pages = 0

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        self.read_pages += len(tasks)
        return super().read(tasks) if self.read_pages == 1 else [DeadlineExceeded("Late.") for _ in tasks]


@pytest.fixture(scope="module")
def engine() -> LateEngine:
    return LateEngine()


@pytest.fixture(scope="module")
def reader(engine: LateEngine) -> Iterator[Reader]:
    with running_reader(opener=lambda: engine, threads=1) as reader:
        yield reader


@pytest.fixture
def client(engine: LateEngine, reader: Reader) -> FlaskClient:
    engine.read_pages = 0
    return create_app(Settings(), reader).test_client()


SENT = data_of("late_pages")["sent"]
# Formats whose requests have one image.
ONE_IMAGE = {"paddle_serving", "rapidocr_api", "trwebocr", "trwebocr_cpp"}
# Formats whose documents are jobs, in which each page has a separate deadline.
JOBS = {"azure_read", "umi_ocr"}


def test_each_format_with_several_pages_has_a_row_here() -> None:
    assert {name.partition(" ")[0] for name in SENT} == set(adapters()) - ONE_IMAGE - JOBS | {"api"}


@pytest.mark.parametrize("name", SENT)
def test_late_pages_fail_the_whole_answer(client: FlaskClient, engine: LateEngine, name: str) -> None:
    path, row = SENT[name]
    sent = filled(row, DOCUMENT=as_base64(DOCUMENT), WIDE=as_base64(WIDE), NARROW=as_base64(NARROW))
    if "file" in sent:
        sent = {"data": {sent["file"]: (io.BytesIO(DOCUMENT), "a.pdf")}}
    elif "data" in sent:
        sent = {"data": DOCUMENT}
    response = client.post(path, **sent)
    assert (response.status_code, engine.read_pages > 1) == (504, True), response.text[:500]


_OCR = "/ocr.OCRService/Recognize"
RPCS: dict[str, tuple[str, str, Any]] = {
    "turboocr pdf": (_OCR + "PDF", "ocr.OCRPDFResponse", MESSAGES["ocr.OCRPDFRequest"](pdf_data=DOCUMENT)),
    "turboocr batch": (_OCR + "Batch", "ocr.OCRBatchResponse", MESSAGES["ocr.OCRBatchRequest"](images=[WIDE, NARROW])),
    "kserve_v2": (V2 + "ModelInfer", "inference.ModelInferResponse", infer_request(WIDE, NARROW)),
}


@pytest.mark.parametrize("name", RPCS)
def test_late_pages_fail_the_whole_call(engine: LateEngine, reader: Reader, name: str) -> None:
    path, answer, request = RPCS[name]
    engine.read_pages = 0
    with served(make_services(model_over(reader))) as channel, pytest.raises(grpc.RpcError) as caught:
        unary(channel, path, answer)(request, timeout=20)
    assert (caught.value.code(), engine.read_pages > 1) == (grpc.StatusCode.DEADLINE_EXCEEDED, True)


@pytest.mark.parametrize("sent", [{"data": DOCUMENT}, {"json": {"images": IMAGES}}])
def test_a_request_for_partial_answers_gets_the_finished_pages(client: FlaskClient, sent: Mapping[str, Any]) -> None:
    response = client.post("/v1/ocr?partial=true", **sent)
    first, *late = json_of(response)["pages"]
    assert (response.status_code, bool(texts({"pages": [first]})[0])) == (200, True)
    assert {page["error"]["code"] for page in late} == {DeadlineExceeded.code}


@pytest.mark.parametrize("path", ["/v1/ocr?format=ndjson", "/ocr/stream"])
def test_a_stream_sends_the_finished_pages_and_ends_with_the_error(client: FlaskClient, path: str) -> None:
    with client.post(path, data=DOCUMENT) as response:
        parts = [json.loads(line) for line in response.data.splitlines()]
    assert response.status_code == 200
    assert [part for part in parts if part.get("lines") or part.get("results")]
    assert "error" in parts[-1] or parts[-1] == {"event": "error", "code": "INFERENCE_TIMEOUT"}
