"""Documents are read page by page; limits, errors and costs of bad documents."""

import io
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
from documents import BLACK, GRAY, assemble, drawn, open_pdf, pdf, stream, tiff
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from image_support import png
from web_support import as_base64, json_of, running_app, running_reader

from ocrsvc.errors import BrokenImage, CallerError, DeadlineExceeded, QueueFull
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.imaging.codecs.tiff_directories import find_pages
from ocrsvc.imaging.page_ranges import choose, parse_ranges
from ocrsvc.imaging.pdf import open_pdf as pdf_module
from ocrsvc.imaging.pdf.open_pdf import DrawingLimits, size_px
from ocrsvc.pipeline.decode_job import make_read_request
from ocrsvc.pipeline.documents import Documents
from ocrsvc.results import ReadOptions
from ocrsvc.settings.settings import Settings

MEGAPIXEL = 1_000_000
# With one engine thread, two images are decoded and two PDFs opened at once.
DECODERS = 2
_WAIT_S = 60.0


CLIENT_SETTINGS = Settings(max_pages=4)


def post(client: FlaskClient, data: bytes, query: str = "", **how: Any) -> Any:
    return client.post(f"/v1/ocr{query}", data=data, content_type="application/octet-stream", **how)


def numbers(answer: Any) -> list[int]:
    return [page["page"] for page in answer["pages"]]


@pytest.mark.parametrize(
    ("data", "widths"),
    [
        # 72 points are 200 pixels at 200 dpi.
        (pdf(GRAY, GRAY, GRAY), [200, 200, 200]),
        (tiff([40, 50, 60]), [40, 50, 60]),
        (tiff([40, 50, 60], big_tiff=True), [40, 50, 60]),
        # Reduced copies (1) and masks (4) do not count as pages.
        (tiff([40, 10, 50, 20], [0, 1, 2, 4]), [40, 50]),
        (png(), [64]),
    ],
    ids=["PDF", "TIFF", "BigTIFF", "TIFF with copies", "image"],
)
def test_every_page_of_a_document_is_read(client: FlaskClient, data: bytes, widths: list[int]) -> None:
    answer = json_of(post(client, data))
    assert [(page["page"], page["width"]) for page in answer["pages"]] == list(enumerate(widths, 1))
    assert answer["pages_total"] == len(widths)


@pytest.mark.parametrize(
    "send",
    [
        lambda client, data: client.post("/v1/ocr", json={"image": as_base64(data)}),
        lambda client, data: client.post("/v1/ocr", data=data, content_type="application/pdf"),
        lambda client, data: client.post("/v1/ocr", data={"file": (io.BytesIO(data), "a.jpg")}),
        lambda client, data: client.post("/v1/ocr", data=data, content_type="application/x-www-form-urlencoded"),
    ],
)
def test_a_pdf_is_recognized_by_its_bytes(client: FlaskClient, send: Callable[[FlaskClient, bytes], Any]) -> None:
    assert numbers(json_of(send(client, pdf(GRAY, GRAY)))) == [1, 2]


@pytest.mark.parametrize(
    ("asked", "read"), [("2", [2]), ("1-2", [1, 2]), ("5-", [5, 6]), ("6,1,1-2", [1, 2, 6]), (" 4 - 99 ", [4, 5, 6])]
)
def test_pages_can_be_chosen(client: FlaskClient, asked: str, read: list[int]) -> None:
    answer = json_of(client.post("/v1/ocr", json={"image": as_base64(tiff([40] * 6)), "pages": asked}))
    assert (numbers(answer), answer["pages_total"]) == (read, 6)


@pytest.mark.parametrize("data", [tiff([40, 40]), png()])
def test_missing_pages_are_reported(client: FlaskClient, data: bytes) -> None:
    problem = json_of(post(client, data, "?pages=3-"))
    assert (problem["status"], problem["code"]) == (400, "bad_option")
    assert "page" in problem["detail"]


def test_hostile_page_ranges_are_parsed_in_linear_time() -> None:
    # pdfium reports this number of pages for a PDF of a few bytes.
    count = 1_000_000
    began_s = time.process_time()
    with pytest.raises(ValueError, match="x"):
        parse_ranges("1-" + " " * 20_000 + "x")
    assert len(choose(parse_ranges(",".join(["1-", "2-"] * 50)), count)) == count
    # A backtracking parser takes 4 s, and a loop over all pages for each range 5 s.
    assert time.process_time() - began_s < 2


def test_too_many_pages_are_refused_with_limit_and_remedy(client: FlaskClient) -> None:
    problem = json_of(post(client, tiff([40] * 6)))
    assert (problem["status"], problem["code"]) == (413, "too_many_pages")
    assert "OCRSVC_MAX_PAGES" in problem["detail"]
    assert [part for part in ("/v1/jobs", "at most 4 pages") if part not in problem["remedy"]] == []


def test_pages_of_several_files_are_numbered_through_and_name_their_file(client: FlaskClient) -> None:
    sent = {"images": [as_base64(png(30)), as_base64(tiff([40, 50])), as_base64(b"no image")]}
    answer = json_of(client.post("/v1/ocr", json=sent))
    assert numbers(answer) == [1, 2, 3, 4]
    places = [(page["source"]["file"], page["source"]["page"]) for page in answer["pages"]]
    assert (places, answer["pages_total"]) == ([(1, 1), (2, 1), (2, 2), (3, 1)], 4)


def test_other_formats_have_page_numbers_of_the_document(client: FlaskClient) -> None:
    rows = [row.split("\t") for row in post(client, tiff([40] * 6), "?pages=2,5&format=tsv").text.splitlines()]
    assert [row[1] for row in rows if row[0] == "1"] == ["2", "5"]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"]), st.binary(max_size=200))
def test_hostile_tiffs_neither_crash_nor_hang_the_page_search(head: bytes, rest: bytes) -> None:
    assert len(find_pages(head + rest)) <= len(rest)


KEPT = {"X-Keep-Result": "1"}
CACHED = Settings(cache_bytes=MEGAPIXEL)


@pytest.mark.parametrize(
    ("chosen", "headers", "is_cached"), [(CACHED, {}, True), (Settings(), KEPT, True), (Settings(), {}, False)]
)
def test_pages_are_cached_by_setting_or_request(chosen: Settings, headers: dict[str, str], *, is_cached: bool) -> None:
    with running_app(chosen) as app:
        for _ in range(2):
            sent = {"file": (io.BytesIO(pdf(GRAY)), "a.pdf")}
            answer = json_of(app.test_client().post("/v1/ocr", data=sent, headers=headers))
    assert (answer["timing"]["engine_s"] == 0) is is_cached


def test_form_fields_are_drawn() -> None:
    field = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (a) /V (b) /Rect [0 0 72 36] /AP << /N 51 0 R >> /F 4 >>"
    objects = {50: field, 51: stream(GRAY, b"/Type /XObject /Subtype /Form /BBox [0 0 72 36]")}
    file = pdf(b"", extra=b"/AcroForm << /Fields [50 0 R] >>", page=b"/Annots [50 0 R]", objects=objects)
    with open_pdf(file) as document:
        pixels = drawn(document)
    assert abs(int(pixels[18, 36]) - 127) <= 2


def test_paddlex_answers_the_first_ten_pages_with_their_pictures() -> None:
    with running_app() as app:
        sent = {"file": as_base64(pdf(*[GRAY] * 11)), "fileType": 0}
        result = json_of(app.test_client().post("/ocr", json=sent))["result"]
    assert result["dataInfo"] == {"numPages": 10, "pages": [{"width": 200, "height": 100}] * 10, "type": "pdf"}
    assert [set(page) for page in result["ocrResults"]] == [{"prunedResult", "ocrImage", "inputImage"}] * 10


def test_ocr_space_answers_each_page_and_marks_failed_ones(client: FlaskClient) -> None:
    sent = {"file": (io.BytesIO(pdf(GRAY, BLACK, *[GRAY] * 3)), "a.pdf")}
    answer = json_of(client.post("/parse/image", data=sent))
    assert [page["FileParseExitCode"] for page in answer["ParsedResults"]] == [1, -10, 1, 1]
    assert (answer["OCRExitCode"], answer["IsErroredOnProcessing"]) == (2, False)
    assert answer["ErrorMessage"][-1] == "The maximum page limit of 4 reached"


def with_image(width: int, height: int, inside: bytes = b"/I Do") -> bytes:
    head = b"/Type /XObject /Subtype /Image /Width %d /Height %d /BitsPerComponent 1 /ColorSpace /DeviceGray"
    form = b"/Type /XObject /Subtype /Form /BBox [0 0 72 72] /Resources << /XObject << /I 4 0 R >> >>"
    objects = {4: stream(b"", head % (width, height)), 5: stream(b"/I Do", form)}
    content = b"q 72 0 0 72 0 0 cm %s Q" % inside
    return pdf(content, size=(72, 72), resources=b"/XObject << /I 4 0 R /X 5 0 R >>", objects=objects)


BAD = {
    "encrypted": (
        assemble(
            {1: b"<< /Type /Catalog /Pages 2 0 R >>", 2: b"<< /Type /Pages /Kids [] /Count 0 >>"},
            b"/Encrypt << /Filter /Standard /V 1 /R 2 /O (%s) /U (%s) /P -4 >> /ID [(a) (a)]" % (b"o" * 32, b"u" * 32),
        ),
        (422, "encrypted_document"),
    ),
    "cut off": (pdf(GRAY)[:100], (422, "broken_image")),
    "no pages": (pdf(), (422, "broken_image")),
    "a header only": (b"%PDF-1.7\n", (422, "broken_image")),
    "a page of 35 metres": (pdf(GRAY, size=(1e5, 1e5)), (413, "image_too_large")),
    "a bomb": (with_image(30_000, 30_000), (413, "image_too_large")),
    "a bomb in a form": (with_image(30_000, 30_000, b"/X Do"), (413, "image_too_large")),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_pdf_is_refused_with_the_reason(client: FlaskClient, name: str) -> None:
    data, expected = BAD[name]
    problem = json_of(post(client, data))
    assert (problem["status"], problem["code"]) == expected
    assert "PDF" in problem["detail"]


def test_pdfs_can_be_switched_off() -> None:
    with running_app(Settings(pdf_dpi=0)) as app:
        problem = json_of(post(app.test_client(), pdf(GRAY)))
    assert (problem["status"], problem["code"]) == (415, "unsupported_image")


# 4 kB that pdfium draws for several seconds (2 s for 100,000 rectangles on a fast machine).
ENDLESS = pdf(b"0 0 700 800 re f\n" * 150_000, GRAY, size=(600, 800))


def test_an_endless_drawing_ends_at_its_limit_and_the_next_page_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_module, "PAGE_LIMIT_S", 2.0)
    with open_pdf(ENDLESS) as document:
        with pytest.raises(BrokenImage, match="longer than 2 seconds"):
            drawn(document)
        assert drawn(document, 2).shape == (800, 600)


def test_drawing_ends_at_the_deadline_and_the_page_is_reported(client: FlaskClient) -> None:
    problem = json_of(post(client, ENDLESS, "?pages=1", headers={"X-Request-Timeout": "1.5"}))
    assert (problem["status"], problem["code"]) == (504, "deadline_exceeded")


def test_a_waiting_pdf_does_not_block_images() -> None:
    sizes: list[int] = []

    def decode_one() -> None:
        with reader.decoded_image(pdf(GRAY), 1) as image:
            sizes.append(image.width)

    with running_reader(threads=1) as reader, ThreadPoolExecutor(DECODERS) as pool, ExitStack() as limiter:
        for _ in range(DECODERS):
            limiter.enter_context(reader._documents._pdf_limiter.take(bool))
        for _ in range(DECODERS):
            pool.submit(decode_one)
        with pytest.raises(DeadlineExceeded), reader.decoded_image(pdf(GRAY), 1, limit_s=0.5):
            pytest.fail("the PDF was drawn")
        assert reader.read(png(), ReadOptions(), 5.0).page.lines
    assert sizes == [200] * DECODERS


def test_the_child_process_is_stopped_at_its_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_module, "_MEMORY_BYTES", 100 << 20)
    with open_pdf(pdf(b"0 0 70 30 re f\n" * 400_000)) as document, pytest.raises(BrokenImage, match="too much memory"):
        drawn(document)


def test_a_child_cannot_shrink_the_canvas() -> None:
    with open_pdf(pdf(GRAY)) as document:
        drawn(document)
        with pytest.raises(PermissionError):
            os.ftruncate(document._canvas, 4096)


@pytest.mark.parametrize(
    ("points", "max_pixels", "size"),
    [
        ((612, 792), 4 * MEGAPIXEL, (1700, 2200)),
        # 4 megapixels at 200 dpi are over the limit, so each side is halved.
        ((720, 720), MEGAPIXEL, (1000, 1000)),
        ((0.1, 0.1), MEGAPIXEL, (1, 1)),
        ((10_000, 10), MEGAPIXEL, (20_000, 20)),
        *(((side, 10), MEGAPIXEL, None) for side in (0, -1, float("nan"), float("inf"))),
        ((2000, 2000), MEGAPIXEL, None),
    ],
)
def test_page_size_limits_apply(points: tuple[float, float], max_pixels: int, size: tuple[int, int] | None) -> None:
    with nullcontext() if size else pytest.raises(CallerError):
        assert size_px(*points, DrawingLimits(200, max_pixels, 20_000)) == size


def test_at_most_half_the_queue_waits_to_open_documents() -> None:
    documents, file = Documents(Settings(queue_size=4), PixelLimits(MEGAPIXEL), max_pdfs=1), pdf(GRAY)

    def open_one() -> None:
        with documents.open(file, make_read_request(ReadOptions(), _WAIT_S)):
            pass

    with ThreadPoolExecutor(3) as threads:
        with documents.open(file, make_read_request(ReadOptions(), _WAIT_S)):
            opening = [threads.submit(open_one) for _ in range(3)]
            refused, _ = wait(opening, _WAIT_S, FIRST_COMPLETED)
        assert [type(one.exception()) for one in refused] == [QueueFull]
        assert [one.exception() for one in opening if one not in refused] == [None, None]
