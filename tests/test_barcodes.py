"""Barcodes: found and located on pages, masked, read in a child process, and drawn and read for Umi-OCR."""

import base64
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
from flask.testing import FlaskClient
from image_support import decoded, encoded, png
from support import data_of, filled
from web_support import as_base64, json_of, running_reader

from ocrsvc.app import create_app
from ocrsvc.errors import BadOption, DeadlineExceeded
from ocrsvc.imaging.barcodes import MAX_TEXT, draw_barcode, find_barcodes
from ocrsvc.pipeline.read import Reader
from ocrsvc.results import Pixels, ReadOptions
from ocrsvc.settings.settings import Settings

SOON_S = 60.0
CORNER = (40, 60)


def page_with(*codes: tuple[str, str], scale: int = 4) -> Pixels:
    drawn = [draw_barcode(text, kind).repeat(scale, 0).repeat(scale, 1) for text, kind in codes]
    page = np.full((CORNER[1] + sum(code.shape[0] for code in drawn) + 40, 800), 255, np.uint8)
    top = CORNER[1]
    for code in drawn:
        page[top : top + code.shape[0], CORNER[0] : CORNER[0] + code.shape[1]] = code
        top += code.shape[0]
    return page


def png_with(*codes: tuple[str, str]) -> bytes:
    return encoded(page_with(*codes))


@pytest.fixture(scope="module", params=["thread", "process"])
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    """A reader with the fake engine, in this process or in a child process."""
    with running_reader(Settings(engine="fake", isolation=request.param), opener=None, threads=1) as reader:
        yield reader


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    """A test client of an application that serves all of Umi-OCR's routes."""
    settings = Settings(engine="fake", usual_ports=("umi_ocr",))
    with running_reader(settings, opener=None, threads=1) as reader:
        yield create_app(settings, reader).test_client()


@pytest.mark.parametrize("kind", ["QRCode", "DataMatrix", "Aztec", "PDF417", "Code128"])
@pytest.mark.parametrize("turn", [None, cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180])
def test_a_barcode_is_read_in_every_direction(kind: str, turn: int | None) -> None:
    page = page_with(("Lager 7", kind))
    found = find_barcodes(page if turn is None else np.asarray(cv2.rotate(page, turn), np.uint8))
    assert [(code.type, code.text) for code in found] == [(kind, "Lager 7")]


def test_barcodes_of_a_large_page_are_found_once() -> None:
    small = draw_barcode("small", "QRCode").repeat(4, 0).repeat(4, 1)
    large = draw_barcode("large", "QRCode").repeat(60, 0).repeat(60, 1)
    page = np.full((4200, 3600), 255, np.uint8)
    places = [(0, 0), (1480, 960), (3300, 4000), (1000, 30)]
    for x, y in places:
        page[y : y + small.shape[0], x : x + small.shape[1]] = small
    page[1500 : 1500 + large.shape[0], 1700 : 1700 + large.shape[1]] = large
    found = find_barcodes(page)
    assert [code.text for code in found].count("large") == 1
    corners = sorted(code.box[0] for code in found if code.text == "small")
    assert len(corners) == len(places)
    assert np.abs(np.array(corners) - np.array(sorted(places)) - 16).max() <= 8


def test_the_search_ends_when_its_client_disconnects() -> None:
    calls = iter([None, None])

    def gone_at_the_third() -> None:
        if next(calls, DeadlineExceeded("late")) is not None:
            raise DeadlineExceeded("late")

    with pytest.raises(DeadlineExceeded):
        find_barcodes(np.full((4200, 3600), 255, np.uint8), gone_at_the_third)


def test_barcodes_are_listed_from_top_to_bottom(reader: Reader) -> None:
    image = png_with(("5901234123457", "EAN13"), ("https://example.org", "QRCode"))
    page = reader.read(image, ReadOptions(barcodes=True), SOON_S).page
    found = [(code.type, code.text) for code in page.barcodes]
    assert found == [("EAN13", "5901234123457"), ("QRCode", "https://example.org")]
    assert page.lines


def test_boxes_of_barcodes_are_in_the_whole_image(reader: Reader) -> None:
    image = png_with(("abc", "QRCode"))
    whole = reader.read(image, ReadOptions(barcodes="only"), SOON_S).page.barcodes[0].box
    options = ReadOptions(barcodes="only", region=(20, 30, 300, 300), rotate="90")
    part = reader.read(image, options, SOON_S).page.barcodes[0].box
    assert np.mean(part, axis=0) == pytest.approx(np.mean(whole, axis=0), abs=2.0)
    # The quiet zone is four modules of 4 px wide.
    assert whole[0] == pytest.approx((CORNER[0] + 16, CORNER[1] + 16), abs=4.0)


def test_the_text_of_barcodes_is_masked(reader: Reader) -> None:
    image = png_with(("card 4111111111111111", "QRCode"))
    page = reader.read(image, ReadOptions(barcodes=True, mask=("card",)), SOON_S).page
    assert "4111111111111111" not in page.barcodes[0].text
    assert page.barcodes[0].text.startswith("card *")


@pytest.mark.parametrize(
    ("text", "kind", "level", "said"),
    [
        ("abc", "Nothing", None, "not a valid barcode format"),
        ("abc", "EAN13", None, "Invalid character"),
        ("x" * (MAX_TEXT + 1), "QRCode", None, "at most"),
        ("", "QRCode", None, "empty"),
        ("abc", "Code128", "H", "ecLevel"),
    ],
)
def test_text_that_cannot_be_drawn_is_refused(text: str, kind: str, level: str | None, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        draw_barcode(text, kind, level=level)


def test_the_native_api_lists_barcodes(client: FlaskClient) -> None:
    image = png_with(("abc", "QRCode"))
    (page,) = json_of(client.post("/v1/ocr?barcodes=only", data=image))["pages"]
    assert [(code["type"], code["text"], len(code["box"])) for code in page["barcodes"]] == [("QRCode", "abc", 4)]
    assert page["lines"] == []
    assert "barcodes" not in json_of(client.post("/v1/ocr", data=image))["pages"][0]


def umi(client: FlaskClient, **members: Any) -> Any:
    return json_of(client.post("/api/qrcode", json=members, base_url="http://127.0.0.1:1224"))


def test_umi_ocr_reads_a_code_that_it_drew(client: FlaskClient) -> None:
    drawn = umi(client, text="测试 abc 123", options={"w": 200, "h": 200, "ec_level": 2})
    assert drawn["code"] == 100
    assert decoded(base64.b64decode(drawn["data"])).shape[0] > 100
    read = umi(client, base64=drawn["data"])
    found = [read["data"][0][name] for name in ("text", "format", "orientation", "score")]
    assert (read["code"], found) == (100, ["测试 abc 123", "QRCode", 0, 1])


@pytest.mark.parametrize(("members", "code"), data_of("umi_barcodes")["errors"])
def test_umi_ocr_reports_errors_by_its_codes(client: FlaskClient, members: dict[str, Any], code: int) -> None:
    files = {"NO_IMAGE": as_base64(b"no image at all"), "BLANK": as_base64(png(90, 90, 255))}
    answer = umi(client, **filled(members, **files))
    assert answer["code"] == code
    assert isinstance(answer["data"], str)
