"""POST /v1/ocr that returns files: searchable PDF, several formats as a zip, their names, and failed pages."""

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pikepdf
import pypdfium2
import pytest
from documents import GRAY, page_texts, pdf, tiff
from flask.testing import FlaskClient
from image_support import png, saved
from PIL import Image
from support import data_of
from web_support import json_of, running_reader

from ocrsvc.app import create_app
from ocrsvc.formats.output_files import disposition_of, stem_of
from ocrsvc.settings.settings import Settings

PNG = png(200, 72)
JUNK = b"no image"
SETTINGS = Settings(engine="fake", fake_text="call +49 30 901820 now", pdf_dpi=100)


@contextmanager
def client_with(settings: Settings) -> Iterator[FlaskClient]:
    with running_reader(settings, opener=None) as reader:
        yield create_app(settings, reader).test_client()


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    with client_with(SETTINGS) as client:
        yield client


def post(client: FlaskClient, query: str, *files: tuple[str, bytes], **more: Any) -> Any:
    sent = {"file": [(io.BytesIO(data), name) for name, data in files]}
    return client.post(f"/v1/ocr?{query}", data=sent, **more)


def words_of(data: bytes) -> list[list[str]]:
    return [text.split() for text in page_texts(data)]


def texts_of(answer: Any) -> list[list[str]]:
    return [page["text"].split() for page in answer["pages"]]


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


@pytest.mark.parametrize(
    "files",
    [
        [("a.pdf", pdf(GRAY, GRAY, size=(300, 72)))],
        [("a.png", PNG)],
        [("a.tif", tiff([200, 300]))],
        [("a.png", PNG), ("b.tif", tiff([200, 300])), ("c.png", PNG)],
    ],
    ids=["PDF", "picture", "TIFF", "several pictures"],
)
def test_a_searchable_pdf_has_the_text_of_each_page(client: FlaskClient, files: list[tuple[str, bytes]]) -> None:
    response = post(client, "format=pdf", *files)
    assert (response.status_code, response.content_type) == (200, "application/pdf")
    assert words_of(response.data) == texts_of(json_of(post(client, "", *files)))


def test_region_text_is_placed_on_the_whole_page(client: FlaskClient) -> None:
    whole = post(client, "format=pdf&region=100,36,100,36", ("a.png", PNG)).data
    with pypdfium2.PdfDocument(whole) as document:
        page = document[0]
        wide, high = page.get_size()
        text = page.get_textpage()
        boxes = [text.get_rect(at) for at in range(text.count_rects())]
        assert (round(wide), round(high)) == (72, 26)
    assert boxes
    assert all(left >= wide / 2 - 0.5 and top <= high / 2 + 0.5 for left, _, _, top in boxes)


def test_several_formats_are_returned_as_a_zip(client: FlaskClient) -> None:
    response = post(client, "format=pdf,txt,json,hocr,txt", ("scan 1.png", PNG))
    assert response.content_type == "application/zip"
    assert response.headers["Content-Disposition"] == 'attachment; filename="scan 1.zip"'
    files = members(response.data)
    assert list(files) == ["scan 1.pdf", "scan 1.txt", "scan 1.json", "scan 1.hocr"]
    answer = json.loads(files["scan 1.json"])
    assert words_of(files["scan 1.pdf"]) == texts_of(answer)
    assert files["scan 1.txt"].decode() == answer["pages"][0]["text"] + "\n"
    assert "words" not in answer["pages"][0]["lines"][0]
    alone = post(client, "format=hocr", ("scan 1.png", PNG))
    assert files["scan 1.hocr"].decode() == alone.text
    assert alone.headers["Content-Disposition"] == 'attachment; filename="scan 1.hocr"'


def test_requested_words_are_in_every_format(client: FlaskClient) -> None:
    files = members(post(client, "format=json,tsv,pdf&words=true", ("a.png", PNG)).data)
    assert "words" in json.loads(files["a.json"])["pages"][0]["lines"][0]
    assert any(row.startswith(b"5\t") for row in files["a.tsv"].splitlines())


def test_pdf_among_several_files_returns_one_file_each(client: FlaskClient) -> None:
    response = post(client, "format=pdf,txt", ("a.pdf", pdf(GRAY, size=(300, 72))), ("a.png", PNG))
    files = members(response.data)
    assert list(files) == ["1-a.pdf", "2-a.pdf", "document.txt"]
    text = files["document.txt"].decode()
    assert [page.split() for page in text.split("\f")] == words_of(files["1-a.pdf"]) + words_of(files["2-a.pdf"])


def test_failed_page_has_no_text_and_is_listed_in_the_header(client: FlaskClient) -> None:
    broken = pdf(GRAY, GRAY, size=(200, 72)).replace(b"12 0 obj\n<< /Type /Page", b"12 0 obj\n<< /Type /Pagg")
    response = post(client, "format=pdf", ("a.pdf", broken))
    assert (response.status_code, response.headers["X-Failed-Pages"]) == (200, "2")
    response = post(client, "format=pdf", ("a.png", PNG), ("b.png", JUNK), ("c.png", JUNK), ("d.png", PNG))
    assert response.headers["X-Failed-Pages"] == "2-3"
    assert [len(words) > 0 for words in words_of(response.data)] == [True, False, False, True]
    assert post(client, "format=pdf", ("b.png", JUNK)).status_code == 415


def test_text_next_to_json_omits_failed_pages(client: FlaskClient) -> None:
    files = (("a.png", PNG), ("b.png", JUNK), ("c.png", PNG))
    assert post(client, "format=pdf,txt", *files).status_code == 415
    made = members(post(client, "format=tsv,json", *files).data)
    assert [page["page"] for page in json.loads(made["document.json"])["pages"] if "error" in page] == [2]
    rows = [row.split("\t") for row in made["document.tsv"].decode().splitlines()]
    assert [row[1] for row in rows if row[0] == "1"] == ["1", "3"]


@pytest.mark.parametrize("file", [("a.pdf", pdf(b"1 g 0 0 9999 9999 re f", size=(300, 72))), ("a.png", PNG)])
def test_masked_text_is_neither_searchable_nor_visible(client: FlaskClient, file: tuple[str, bytes]) -> None:
    part = json_of(post(client, "mask=phone", file))["pages"][0]["masked"][0]
    response = post(client, "format=pdf&mask=phone", file)
    assert "901820" not in " ".join(words_of(response.data)[0])
    with pikepdf.open(io.BytesIO(response.data)) as document:
        image = pikepdf.PdfImage(cast(pikepdf.Stream, document.pages[0].obj["/Resources"]["/XObject"]["/I"]))
        pixels = np.asarray(image.as_pil_image().convert("L"))
    (left, top), _, (right, bottom), _ = part["box"]
    inside = pixels[int(top) + 1 : int(bottom), int(left) + 1 : int(right)]
    assert inside.size
    assert inside.max() < 40


def test_failed_page_is_blank_when_masking(client: FlaskClient) -> None:
    jpeg_cut = png(200, 72)[:-40]
    response = post(client, "format=pdf&mask=phone", ("a.png", PNG), ("b.png", jpeg_cut))
    with pikepdf.open(io.BytesIO(response.data)) as document:
        assert "/XObject" in document.pages[0].obj["/Resources"]
        assert "/XObject" not in document.pages[1].obj["/Resources"]


def test_result_file_respects_the_memory_limit() -> None:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 80), np.uint8)).resize((320, 240))
    file = saved(noise, "TIFF", save_all=True, append_images=[noise] * 39, compression="jpeg", quality=30)
    with client_with(Settings(engine="fake", max_body_bytes=2_000_000, request_memory_bytes=2_000_000)) as small:
        assert small.post("/v1/ocr?format=txt", data=file).status_code == 200
        refused = json_of(small.post("/v1/ocr?format=pdf", data=file))
    assert (refused["code"], "OCRSVC_REQUEST_MEMORY_BYTES" in refused["detail"]) == ("body_too_large", True)


LONG = (("x" * 5000 + ".png", "x" * 150), ("字" * 100, "字" * 50))


@pytest.mark.parametrize(("sent", "stem"), [*data_of("file_names")["stems"], *LONG])
def test_file_names_are_sanitized(sent: str, stem: str) -> None:
    assert stem_of(sent) == stem


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a b.pdf", 'attachment; filename="a b.pdf"'),
        ("合同.pdf", "attachment; filename=\"document.pdf\"; filename*=UTF-8''%E5%90%88%E5%90%8C.pdf"),
        ("Müller.pdf", "attachment; filename=\"Muller.pdf\"; filename*=UTF-8''M%C3%BCller.pdf"),
    ],
)
def test_content_disposition_encodes_unicode_names(name: str, header: str) -> None:
    assert disposition_of(name) == header
