"""TurboOCR's API over HTTP and gRPC: requests, results, and errors with their codes."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import grpc
import pytest
from documents import pdf
from flask.testing import FlaskClient
from grpc_support import MESSAGES, known_model, served, services_raising, unary
from image_support import png
from support import data_of, filled
from web_support import TEXT, as_base64, client_raising, json_of

from ocrsvc import errors
from ocrsvc.adapters.turboocr.parameters import swap_colours
from ocrsvc.settings.settings import Settings

PNG = png(64, 32)
B64 = as_base64(PNG)
SEEN = "64x32 auto True False None"
# The boxes of `KnownEngine`'s lines, worked out by hand for an image of 64 x 32 pixels.
FIRST, SECOND = [[16, 8], [48, 8], [48, 16], [16, 16]], [[32, 8], [40, 16], [32, 24], [24, 16]]
FORM = "application/x-www-form-urlencoded"
GRAY, BLACK = b"0.5 g 0 0 72 36 re f", b"0 g 0 0 72 36 re f"
# Drawn at 200 dpi and reported at 100 dpi: a page of 72 x 36 points has 100 x 50 pixels.
PAGE_FIRST = [[25, 12], [75, 12], [75, 25], [25, 25]]
ALL = "?layout=1&as_blocks=yes&tables=true"
SERVICE = "/ocr.OCRService/"
LINES = [
    {"text": TEXT, "confidence": 0.98765, "bounding_box": FIRST},
    {"text": SEEN, "confidence": 0.5, "bounding_box": SECOND},
]
ERRORS = data_of("turboocr_errors")
DATA = {
    "$PNG": PNG,
    "$STUMP": PNG[:8],
    "$HUGE": PNG.replace(b"\0\0\0\x40\0\0\0\x20", b"\0\0\xff\0\0\0\xff\0", 1),
    "$PDF": pdf(GRAY),
    "$CUT": pdf(GRAY)[:100],
    "$LONG": pdf(*[GRAY] * 5),
}


CLIENT_SETTINGS = Settings(adapters=("turboocr",), max_pages=4, max_pixels=10_000_000)


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    with known_model() as methods, served(methods) as opened:
        yield opened


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "json": ("/ocr", {"json": {"image": B64}}),
    "raw": ("/ocr/raw", {"data": PNG, "content_type": "image/png"}),
    "raw as curl sends it": ("/ocr/raw", {"data": PNG, "content_type": FORM}),
    "gray pixels": (
        "/ocr/pixels",
        {"data": bytes([9]) * 2048, "headers": {"X-Width": "64", "X-Height": "32", "X-Channels": "1"}},
    ),
    "colour pixels": ("/ocr/pixels", {"data": bytes([9]) * 6144, "headers": {"X-Width": "64", "X-Height": "32"}}),
    "size in the query": ("/ocr/pixels?width=64&height=32&channels=3&layout=0", {"data": bytes([9]) * 6144}),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_of_sending_are_supported(client: FlaskClient, way: str) -> None:
    path, sent = WAYS[way]
    response = client.post(path, **sent)
    assert json_of(response) == {"results": LINES}
    assert float(response.headers["X-Inference-Time-Ms"]) >= 0
    assert UUID(response.headers["X-Request-Id"]).version == 7


def test_pixels_are_in_the_order_blue_green_red() -> None:
    assert swap_colours(bytes([1, 2, 3, 4, 5, 6])) == bytes([3, 2, 1, 6, 5, 4])


def test_batch_marks_failed_images(client: FlaskClient) -> None:
    response = client.post("/ocr/batch?layout=0", json={"images": [B64, "!!!!", B64]})
    good, bad, other = json_of(response)["batch_results"]
    assert good == other == {"results": LINES}
    assert (bad["results"], bad["error"]["code"]) == ([], "BASE64_DECODE_FAILED")
    assert json_of(response)["errors"] == [None, "BASE64_DECODE_FAILED", None]
    assert float(response.headers["X-Inference-Time-Ms"]) >= 0


@pytest.mark.parametrize(
    "way", [("/ocr" + ALL, {"image": B64}), ("/ocr", {"image": B64, "as_blocks": True, "tables": 1})]
)
def test_regions_blocks_and_tables_refer_to_each_other(client: FlaskClient, way: tuple[str, dict[str, Any]]) -> None:
    answer = json_of(client.post(way[0], json={"image": B64, **way[1]}))
    assert [(line["id"], line["layout_id"]) for line in answer["results"]] == [(0, 0), (1, 0)]
    region = {"id": 0, "class": "paragraph_title", "class_id": 17, "confidence": 0.75, "bounding_box": FIRST}
    assert (answer["layout"], answer["reading_order"]) == ([region], [0, 1])
    block = {"id": 0, "layout_id": 0, "class": "paragraph_title", "bounding_box": FIRST, "order_index": 0}
    assert answer["blocks"] == [{**block, "content": f"{TEXT}\n{SEEN}"}]
    (table,) = answer["tables"]
    assert (table["layout_id"], table["bounding_box"], len(table["cells"])) == (-1, FIRST, 2)
    assert table["html"].startswith("<table><tr><td>")


DOCUMENT = pdf(GRAY, GRAY)
PDF_WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "raw": lambda: {"data": DOCUMENT, "content_type": "application/pdf"},
    "without a type": lambda: {"data": DOCUMENT},
    "form": lambda: {"data": {"file": (io.BytesIO(DOCUMENT), "a.pdf")}},
    "form of another name": lambda: {"data": {"pdf": (io.BytesIO(DOCUMENT), "a.pdf")}},
    "json": lambda: {"json": {"pdf": as_base64(DOCUMENT)}},
}


@pytest.mark.parametrize("way", PDF_WAYS)
def test_pdf_boxes_have_the_requested_dpi(client: FlaskClient, way: str) -> None:
    response = client.post("/ocr/pdf?dpi=100", **PDF_WAYS[way]())
    first, second = json_of(response)["pages"]
    assert (first["page"], first["page_index"], second["page"]) == (1, 0, 2)
    assert (first["dpi"], first["width"], first["height"], first["mode"]) == (100, 100, 50, "ocr")
    assert first["text_layer_quality"] == "absent"
    assert first["results"][0] == {"text": TEXT, "confidence": 0.98765, "bounding_box": PAGE_FIRST}
    assert float(response.headers["X-Inference-Time-Ms"]) >= 0


def test_twice_the_dpi_doubles_the_page_size(client: FlaskClient) -> None:
    page = json_of(client.post("/ocr/pdf?dpi=200&mode=nonsense&layout=1", data=pdf(GRAY)))["pages"][0]
    assert (page["dpi"], page["width"], page["height"], page["mode"]) == (200, 200, 100, "ocr")
    assert page["layout"][0]["bounding_box"] == [[50, 25], [150, 25], [150, 50], [50, 50]]


def test_failed_page_does_not_affect_others_in_a_searchable_pdf(client: FlaskClient) -> None:
    good, bad = json_of(client.post("/ocr/pdf", data=pdf(GRAY, BLACK)))["pages"]
    assert good["results"]
    assert (bad["page"], bad["results"], bad["error"]["code"]) == (2, [], "INFERENCE_ERROR")
    response = client.post("/ocr/pdf?output=pdf&min_confidence=0.4", data=pdf(GRAY, BLACK))
    assert (response.content_type, response.headers["X-OCR-Degraded"]) == ("application/pdf", "text(p2)")
    assert response.data.startswith(b"%PDF-")


def events_of(client: FlaskClient, path: str, data: bytes) -> list[dict[str, Any]]:
    response = client.post(path, data=data)
    assert (response.status_code, response.content_type) == (200, "application/x-ndjson")
    return [json.loads(line) for line in response.data.splitlines()]


def test_a_stream_has_an_event_for_each_page_and_an_early_failure_is_an_error(client: FlaskClient) -> None:
    begin, first, failed, end = events_of(client, "/ocr/stream?dpi=50&layout=1", pdf(GRAY, BLACK))
    assert begin == {"event": "meta", "kind": "pdf", "pages": 2, "dpi": 50, "mode": "ocr"}
    assert (first["event"], first["page_index"], first["width"], len(first["layout"])) == ("page", 0, 50, 1)
    assert failed == {"event": "page_error", "page_index": 1, "code": "INFERENCE_ERROR"}
    assert end == {"event": "end", "pages": 2, "failed": 1}
    begin, page, end = events_of(client, "/ocr/stream", PNG)
    assert (begin["kind"], page["width"], page["results"], end["event"]) == ("image", 64, LINES, "end")
    for sent, code in ((b"hello", "IMAGE_DECODE_FAILED"), (pdf(GRAY)[:100], "PDF_RENDER_FAILED"), (b"", "EMPTY_BODY")):
        response = client.post("/ocr/stream", data=sent)
        assert (response.status_code, json_of(response)["error"]["code"]) == (400, code)


def test_markdown_is_made_of_an_image_and_of_a_pdf(client: FlaskClient) -> None:
    response = client.post("/ocr/markdown?embed=1", data=PNG)
    assert (response.content_type, "促销" in response.text) == ("text/markdown; charset=utf-8", True)
    whole = client.post("/ocr/pdf?markdown=1", data=pdf(GRAY, BLACK, GRAY))
    assert [line for line in whole.text.splitlines() if "page" in line] == ["<!-- page 1 -->", "<!-- page 3 -->"]
    assert (whole.text.count("促销"), whole.headers["X-OCR-Degraded"]) == (2, "text(p2)")
    pages = json_of(client.post("/ocr/pdf?markdown=1&as_pages=1", data=pdf(GRAY, BLACK)))["pages"]
    assert (pages[0]["page_index"], "促销" in pages[0]["markdown"]) == (0, True)
    assert pages[1] == {"page_index": 1, "markdown": "", "text_degraded": True}


def test_pdf_text_layer_is_used_depending_on_the_mode(client: FlaskClient) -> None:
    words = b"BT /F 12 Tf 6 14 Td (Own text) Tj ET"
    own, none = (json_of(client.post("/ocr/pdf?mode=geometric", data=pdf(page)))["pages"][0] for page in (words, GRAY))
    assert ([(line["text"], line["source"]) for line in own["results"]]) == [("Own text", "pdf")]
    assert (own["mode"], own["text_layer_quality"]) == ("geometric", "trusted")
    assert (none["results"], none["mode"], none["text_layer_quality"]) == ([], "geometric", "absent")
    read = json_of(client.post("/ocr/pdf?mode=auto", data=pdf(b"0 g 8 8 20 10 re 40 8 20 10 re f")))["pages"][0]
    assert (read["mode"], read["results"][0]["text"]) == ("ocr", TEXT)


def test_health_and_capabilities_are_answered(client: FlaskClient) -> None:
    assert {client.get(f"/health{path}").text for path in ("", "/live", "/ready")} == {"ok"}
    found = json_of(client.get("/capabilities"))
    assert (found["features"]["layout"], found["features"]["formulas"]) == (True, False)
    assert found["pdf"] == {"modes": ["ocr", "geometric", "auto", "auto_verified"], "default_dpi": 100, "max_pages": 4}
    assert {client.get(path).status_code for path in found["endpoints"]} == {200, 405}


@pytest.mark.parametrize(("path", "row", "code"), ERRORS["http"])
def test_client_errors_have_the_originals_code(client: FlaskClient, path: str, row: dict[str, Any], code: str) -> None:
    sent = filled(row, IMAGE=B64, TEXT=as_base64(b"hello"))
    data = sent.get("data")
    response = client.post(path, **sent | {"data": DATA.get(data, data) if isinstance(data, str) else data})
    assert (response.status_code, list(json_of(response))) == (400, ["error"])
    assert json_of(response)["error"]["code"] == code


SERVICE_ERRORS = [
    (errors.QueueFull("Full."), 503, "SERVER_BUSY", grpc.StatusCode.UNAVAILABLE),
    (errors.DeadlineExceeded("Late."), 504, "INFERENCE_TIMEOUT", grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.EngineFailed("No."), 500, "INFERENCE_ERROR", grpc.StatusCode.INTERNAL),
    (errors.ImageTooLarge("Large."), 400, "DIMENSIONS_TOO_LARGE", grpc.StatusCode.INVALID_ARGUMENT),
]


@pytest.mark.parametrize(("error", "status", "code", "rpc_status"), SERVICE_ERRORS)
def test_service_errors_have_the_same_code_over_http_and_grpc(
    error: errors.OcrsvcError, status: int, code: str, rpc_status: grpc.StatusCode
) -> None:
    response = client_raising(error).post("/ocr/raw", data=PNG)
    assert (response.status_code, json_of(response)["error"]["code"]) == (status, code)
    _, methods = services_raising(error)
    with served(methods) as opened, pytest.raises(grpc.RpcError) as caught:
        call(opened, "Recognize", image=PNG)
    assert status_and_code(caught.value) == (rpc_status, code)


def call(opened: grpc.Channel, method: str, **sent: Any) -> Any:
    message = "ocr." + method.replace("Recognize", "OCR")
    return unary(opened, SERVICE + method, f"{message}Response")(MESSAGES[f"{message}Request"](**sent), timeout=20)


def status_and_code(error: Any) -> tuple[grpc.StatusCode, str]:
    return error.code(), dict(error.trailing_metadata()).get("x-error-code", "")


def test_an_image_and_bare_pixels_are_read_over_grpc(channel: grpc.Channel) -> None:
    answer = call(channel, "Recognize", image=PNG, as_blocks=True)
    found = json.loads(answer.json_response)
    assert (answer.num_detections, list(answer.reading_order)) == (2, [0, 1])
    assert ([line["text"] for line in found["results"]], len(found["blocks"])) == ([TEXT, SEEN], 1)
    size = {"width": 64, "height": 32, "channels": 3}
    answer = call(channel, "Recognize", pixels=bytes([9]) * 6144, **size)
    assert json.loads(answer.json_response) == {"results": LINES}


def test_a_batch_over_grpc_names_the_image_that_fails(channel: grpc.Channel) -> None:
    answer = call(channel, "RecognizeBatch", images=[PNG, b"x"])
    assert (answer.total_images, [one.error for one in answer.batch_results]) == (2, ["", "IMAGE_DECODE_FAILED"])


def test_a_pdf_is_read_over_grpc(channel: grpc.Channel) -> None:
    sent = {"pdf_data": pdf(GRAY, GRAY), "dpi": 100, "tables": True}
    answer = call(channel, "RecognizePDF", **sent)
    pages = [(page.page_number, page.width, page.height, page.dpi, page.mode) for page in answer.pages]
    assert pages == [(1, 100, 50, 100, "ocr"), (2, 100, 50, 100, "ocr")]
    assert json.loads(answer.pages[0].json_response)["results"][0]["bounding_box"] == PAGE_FIRST
    answer = call(channel, "RecognizePDF", pdf_data=pdf(GRAY), output="pdf")
    assert answer.document.startswith(b"%PDF-")
    for more in ({}, {"as_pages": True}):
        sent = {"pdf_data": pdf(GRAY), "markdown": True, **more}
        assert "促销" in call(channel, "RecognizePDF", **sent).markdown
    answer = call(channel, "RecognizeMarkdown", image=PNG)
    assert "促销" in answer.markdown


def test_health_over_grpc_carries_the_capabilities(channel: grpc.Channel) -> None:
    answer = call(channel, "Health")
    assert (answer.status, answer.response_mode) == ("ok", "json_bytes")
    assert json.loads(answer.capabilities_json)["features"]["layout"]


@pytest.mark.parametrize(("method", "row", "code"), ERRORS["grpc"])
def test_grpc_trailers_have_the_errors_code(channel: grpc.Channel, method: str, row: dict[str, Any], code: str) -> None:
    sent = {name: DATA.get(value, value.encode()) if isinstance(value, str) else value for name, value in row.items()}
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, method, **sent)
    assert status_and_code(caught.value) == (grpc.StatusCode.INVALID_ARGUMENT, code)
