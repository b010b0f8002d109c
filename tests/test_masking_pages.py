"""Masking of pages: lines, words, characters, cells, boxes, pictures, and every form of an answer."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pybase64
import pypdfium2
import pytest
from documents import page_texts, pdf
from flask.testing import FlaskClient
from grpc_support import V2, calling, infer_request, model_over, raw_outputs, serving, strings, unary
from image_support import box, decoded, png
from jobs_support import reading_jobs
from support import data_of
from test_adapters import SENT
from web_support import INFO, KnownEngine, as_base64, json_of, running_reader

from ocrsvc.adapters.trwebocr.http import shrink_page
from ocrsvc.app import create_app
from ocrsvc.client.response import Response, answer_of
from ocrsvc.errors import OcrsvcError
from ocrsvc.formats.document import text_parts
from ocrsvc.formats.drawing import draw_page
from ocrsvc.formats.pdf.image_pdf import ImagePdf
from ocrsvc.formats.pdf.page_image import page_image
from ocrsvc.formats.pdf.text_lines import text_of
from ocrsvc.grpc_services import make_services
from ocrsvc.imaging.codecs.decode import PixelLimits
from ocrsvc.jobs.job_store import JobStore
from ocrsvc.masking.mask_page import mask_page, place_of
from ocrsvc.masking.rules import make_rules
from ocrsvc.pipeline.read import Reader
from ocrsvc.plugins import text_formats
from ocrsvc.results import Cell, Character, Line, MaskKind, Page, ReadOptions, ReadTask, Table, Word
from ocrsvc.settings.settings import Settings

PERSON, CARD, PHONE = "11010519491231002X", "4111 1111 1111 1111", "13800138000"
BUILT_IN: tuple[MaskKind, ...] = ("id", "phone", "card", "mail")
ALL = make_rules(BUILT_IN)
STARS = "*" * 18
LETTER_PX = 10.0


def line(text: str, row: int = 0, *, words: bool = False) -> Line:
    """A line of characters 10 px wide, on request with its words and characters."""
    top = 40.0 * row
    place = box(0, top, LETTER_PX * len(text), top + 20)
    if not words:
        return Line(text, 0.9, place)
    found, at = [], 0
    for part in text.split(" "):
        places = [box(LETTER_PX * (at + i), top, LETTER_PX * (at + i + 1), top + 20) for i in range(len(part))]
        characters = tuple(Character(letter, 0.9, place) for letter, place in zip(part, places, strict=True))
        found.append(Word(part, 0.9, box(places[0][0][0], top, places[-1][1][0], top + 20), characters))
        at += len(part) + 1
    return Line(text, 0.9, place, tuple(found))


def page(*lines: Line, tables: tuple[Table, ...] = ()) -> Page:
    return Page(600, 400, 0, lines, tables=tables)


def test_a_number_over_two_lines_is_masked_in_both_but_a_phone_is_not() -> None:
    masked = mask_page(page(line("身份证 1101051949"), line("1231002X 有效", 1)), ALL)
    assert [one.text for one in masked.lines] == ["身份证 **********", "******** 有效"]
    assert masked.masked is not None
    assert [(part.line, part.begin, part.end) for part in masked.masked] == [(0, 4, 14), (1, 0, 8)]
    assert mask_page(page(line("数量 1380"), line("0138000 元", 1)), ALL).masked == ()


def test_words_that_differ_from_the_line_are_masked_completely() -> None:
    odd = replace(line(f"ID {PERSON}"), words=(Word("11O105", 0.5, box(0, 0, 9, 9)), Word("949", 0.5, box(0, 0, 9, 9))))
    (masked,) = mask_page(page(odd), ALL).lines
    assert masked.words is not None
    assert [word.text for word in masked.words] == ["******", "***"]


@pytest.mark.parametrize(("lines", "cell", "in_lines", "masked"), data_of("masked_cells")["cells"])
def test_a_cell_is_masked_as_its_lines_are(lines: list[str], cell: str, in_lines: list[int], masked: str) -> None:
    after_account = make_rules((*BUILT_IN, "own"), [r"Account\s[0-9]+"])
    place = box(0, 0, 9, 9)
    cells = (Cell(0, 0, 1, 1, place, cell, tuple(in_lines)), Cell(0, 1, 1, 1, place, "", ()))
    read = page(*map(line, lines, range(9)), tables=(Table(place, 1, 2, cells),))
    found = mask_page(read, after_account).tables[0].cells
    assert [one.text for one in found] == [masked, ""]


def test_a_masked_box_spans_its_characters_at_line_height() -> None:
    masked = mask_page(page(line(f"ID: {PERSON} ok", words=True)), ALL)
    assert masked.masked is not None
    (part,) = masked.masked
    (left, top), (right, _), (_, bottom), _ = part.box
    assert (top, bottom) == (0.0, 20.0)
    assert (left, right) == pytest.approx((38, 222), abs=2)
    small = shrink_page(masked, 300)
    assert small.masked is not None
    assert small.masked[0].box[1][0] == right / 2


def test_without_character_boxes_the_masked_box_has_a_margin() -> None:
    masked = mask_page(page(line(f"ID: {PERSON} and more than that")), ALL)
    assert masked.masked is not None
    (left, _), (right, _), *_ = masked.masked[0].box
    assert (left < 40 - LETTER_PX, right > 220 + LETTER_PX) == (True, True)
    # A word without character boxes is masked as a whole.
    found = line("aa bb cc", words=True)
    bare = replace(found, words=tuple(replace(word, characters=()) for word in found.words or ()))
    (left, _), (right, _), *_ = place_of(bare, 4, 5)
    assert left <= 30
    assert right >= 50


def test_the_masked_box_in_a_slanted_line_is_slanted() -> None:
    slanted = Line("0123456789", 0.9, ((0.0, 0.0), (100.0, 100.0), (90.0, 110.0), (-10.0, 10.0)))
    a, b, c, d = place_of(slanted, 0, 5)
    assert (a, d) == ((0.0, 0.0), (-10.0, 10.0))
    assert b[0] == pytest.approx(b[1])
    assert (b[0] - c[0], c[1] - b[1]) == pytest.approx((10, 10))


def test_no_output_format_contains_masked_text() -> None:
    masked = mask_page(page(line(f"ID: {PERSON}", words=True), line(CARD, 1)), ALL)
    written = ["".join(text_parts(form, [masked], 1, INFO)) for form in text_formats().values()]
    # Markdown escapes literal stars with a backslash.
    stars = [text.replace("\\*", "*") for text in written]
    assert all(PERSON not in text and "4111" not in text and STARS in text for text in stars)


def test_a_picture_pdf_shows_the_picture_over_its_text() -> None:
    masked = mask_page(page(line(f"ID: {PERSON} ok", words=True)), ALL)
    whole = io.BytesIO()
    made = ImagePdf(whole)
    drawn = draw_page(np.full((400, 600, 3), 255, np.uint8), replace(masked, lines=()))
    made.add_page(page_image(drawn, PixelLimits(1 << 20)), text_of(masked))
    made.finish()
    with pypdfium2.PdfDocument(whole.getvalue()) as document:
        shown = document[0]
        assert STARS in shown.get_textpage().get_text_range()
        pixels = shown.render(scale=600 / shown.get_width()).to_numpy()
    assert pixels[3:17, 42:218].max() < 40
    assert pixels[5:15, 5:32].min() > 200


class NumberEngine(KnownEngine):
    """Reads one line with an ID and a phone number on every page, and records the options."""

    def __init__(self) -> None:
        self.seen: list[ReadOptions] = []

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        self.seen += [task.options for task in tasks]
        only = [line(f"{PERSON} {PHONE}", words=task.options.wants_words) for task in tasks]
        return [Page(task.image.width, task.image.height, 0, (one,)) for task, one in zip(tasks, only, strict=True)]


@pytest.fixture(scope="module")
def engine() -> NumberEngine:
    return NumberEngine()


@pytest.fixture(scope="module")
def reader(engine: NumberEngine) -> Iterator[Reader]:
    with running_reader(Settings(cache_bytes=1 << 20), lambda: engine) as reader:
        yield reader


@pytest.fixture(scope="module")
def client(reader: Reader) -> FlaskClient:
    return create_app(Settings(cache_bytes=1 << 20), reader).test_client()


def read(client: FlaskClient, query: str = "", data: bytes | None = None, **headers: str) -> Any:
    sent = client.post(f"/v1/ocr{query}", data=data or png(), headers=headers)
    return json_of(sent)["pages"][0]


def test_an_answer_is_masked_as_requested(client: FlaskClient) -> None:
    assert read(client)["text"] == f"{PERSON} {PHONE}"
    assert "masked" not in read(client)
    assert read(client, "?mask=id")["text"] == f"{STARS} {PHONE}"
    assert read(client, "?mask=phone")["text"] == f"{PERSON} {'*' * 11}"
    both = read(client, "?mask=Phone , id,id")
    assert both["text"] == f"{STARS} {'*' * 11}"
    assert [part["kind"] for part in both["masked"]] == ["id", "phone"]
    assert [(part["line"], part["begin"], part["end"]) for part in both["masked"]] == [(0, 0, 18), (0, 19, 30)]
    assert "words" not in both["lines"][0]
    words = read(client, "?mask=id&words=true")["lines"][0]["words"]
    assert [word["text"] for word in words] == [STARS, PHONE]
    assert all("characters" not in word for word in words)
    words = read(client, "?mask=id&characters=true")["lines"][0]["words"]
    assert [character["text"] for character in words[0]["characters"]] == ["*"] * 18


def test_the_result_cache_holds_unmasked_pages(client: FlaskClient, engine: NumberEngine) -> None:
    file = png(shade=77)
    masked, before = read(client, "?mask=id", file), len(engine.seen)
    assert read(client, "?mask=phone", file)["text"] == f"{PERSON} {'*' * 11}"
    assert read(client, "?mask=id", file) == masked
    assert read(client, "?characters=true", file)["text"] == f"{PERSON} {PHONE}"
    assert len(engine.seen) == before, "all four requests must be served from one cached page"
    assert all(options.mask == () for options in engine.seen)


ADAPTER_REQUESTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    **SENT,
    "turboocr raw": ("/ocr/raw", {"data": png()}),
    "turboocr batch": ("/ocr/batch", {"json": {"images": [as_base64(png())] * 2}}),
}


@pytest.mark.parametrize("adapter", ADAPTER_REQUESTS)
def test_the_mask_header_works_with_every_adapter(client: FlaskClient, adapter: str) -> None:
    path, sent = ADAPTER_REQUESTS[adapter]

    def answer(query: str = "", **headers: str) -> str:
        response = client.post(f"{path}{query}", headers=headers, **sent)
        assert response.status_code == 200
        return response.get_data(as_text=True)

    assert PERSON in answer()
    for masked in (answer(**{"X-Mask": "id"}), answer("?mask=id")):
        assert PERSON not in masked
        # Markdown escapes literal stars with a backslash.
        assert STARS in masked.replace("\\", "")


@pytest.mark.parametrize(
    ("query", "status"), [("mask=id&mask=phone", 200), ("%6dask=id,phone", 200), ("mask=", 400), ("mask", 400)]
)
def test_masking_in_the_url_is_applied_or_refused(client: FlaskClient, query: str, status: int) -> None:
    answer = client.post(f"/api/tr-run/?{query}", data={"img": as_base64(png())})
    text = answer.get_data(as_text=True)
    assert (answer.status_code, PERSON in text, PHONE in text) == (status, False, False)


def test_pictures_of_adapters_have_masked_parts_in_black(client: FlaskClient) -> None:
    file, masked = as_base64(png(400, 100, 255)), {"X-Mask": "id"}
    form = {"img": file, "compress": "0"}
    drawn = json_of(client.post("/api/tr-run/", data=form, headers=masked))["data"]["img_detected"].partition(",")[2]
    sent = {"file": file, "fileType": 1, "useDocOrientationClassify": True}
    (result,) = json_of(client.post("/ocr", json=sent, headers=masked))["result"]["ocrResults"]
    for data in (drawn, result["ocrImage"], result["inputImage"], result["docPreprocessingImage"]):
        pixels = decoded(pybase64.b64decode(data))
        assert pixels[4:16, 4:176].max() < 40
        assert pixels[6:14, 194:290].min() > 200


@pytest.mark.parametrize("sent", ["", "all", "id;phone", "id,", "id,id,id,id,id,id", "身份证", "own"])
def test_an_unknown_kind_is_refused(client: FlaskClient, sent: str) -> None:
    for response in (
        client.post("/v1/ocr", query_string={"mask": sent}, data=png()),
        client.post("/v1/ocr", headers={"X-Mask": sent.encode().decode("latin-1")}, data=png()),
    ):
        assert (response.status_code, json_of(response)["code"]) == (400, "bad_option")
        assert sent != "own" or "OCRSVC_MASK_PATTERNS" in json_of(response)["remedy"]


def test_the_client_returns_masked_parts(client: FlaskClient) -> None:
    response = client.post("/v1/ocr?mask=id", data=png())
    (found,) = answer_of(Response(200, None, response.data)).pages
    assert found.masked is not None
    assert (found.masked[0].kind, found.masked[0].begin, found.masked[0].end) == ("id", 0, 18)
    assert answer_of(Response(200, None, client.post("/v1/ocr", data=png()).data)).pages[0].masked is None


def test_umi_ocr_masks_all_files_of_a_document(reader: Reader, tmp_path: Any) -> None:
    jobs = JobStore(tmp_path, 1 << 26, 3600.0)
    umi = create_app(Settings(), reader, jobs=jobs).test_client()
    with reading_jobs(jobs, reader):
        file = pdf(b"BT /F 20 Tf 10 50 Td (secret beneath) Tj ET", size=(400, 100))
        form = {"file": (io.BytesIO(file), "a.pdf"), "json": "{}"}
        job = json_of(umi.post("/api/doc/upload", data=form, headers={"X-Mask": "id"}))["data"]
        while not json_of(umi.post("/api/doc/result", json={"id": job}))["is_done"]:
            jobs.added.wait(0.01)
        for kind in ("txt", "jsonl", "csv", "pdfOneLayer", "pdfLayered"):
            made = json_of(umi.post("/api/doc/download", json={"id": job, "file_types": [kind]}))
            data = umi.get(made["data"].partition("localhost")[2]).data
            text = "".join(page_texts(data)) if data.startswith(b"%PDF") else data.decode()
            assert STARS in text, kind
            assert PERSON not in text, kind
            assert "secret" not in text, "the text beneath the masked page must be removed"


def test_a_grpc_call_is_masked_by_parameter_and_metadata(reader: Reader) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(make_services(model_over(reader)), listener), calling(listener.getsockname()[1]) as channel:
        infer = unary(channel, f"{V2}ModelInfer", "inference.ModelInferResponse")

        def text(metadata: Sequence[tuple[str, str]] = (), **parameters: Any) -> str:
            response = infer(infer_request(png(), **parameters), timeout=30.0, metadata=metadata)
            return strings(raw_outputs(response)["text"])[0]

        assert text() == f"{PERSON} {PHONE}"
        assert text(mask="id") == f"{STARS} {PHONE}"
        assert text([("x-mask", "phone")]) == f"{PERSON} {'*' * 11}"
        assert text([("x-mask", "phone")], mask="id") == f"{STARS} {'*' * 11}"
        assert text([("x-mask", "id"), ("x-mask", "phone")]) == f"{STARS} {'*' * 11}"
        with pytest.raises(grpc.RpcError) as refused:
            text([("x-mask", "everything")])
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "X-Mask" in refused.value.details()
