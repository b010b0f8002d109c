"""The adapters for TrWebOCR and TrWebOCR.cpp give the original servers' answers and errors."""

import base64
import io
import json
import re
from typing import Any

import cv2
import numpy as np
import pytest
from flask.testing import FlaskClient
from image_support import png
from numpy.typing import NDArray
from support import data_of, filled
from urllib3.filepost import encode_multipart_formdata
from web_support import TEXT, as_base64, json_of

from ocrsvc.settings.settings import Settings

TR, CPP = "/api/tr-run/", "/api/trocr"
PNG = png(64, 32)
B64 = as_base64(PNG)
FORM = "application/x-www-form-urlencoded"
SEEN = "64x32 auto True False None"

# Calculated by hand from web_support's boxes: a rectangle of 32 x 8, and a square of side sqrt(2) * 8 turned by 45°.
RAW_OUT = [[[32.0, 12.0, 32.0, 8.0, 0.0], TEXT, 0.987654], [[32.0, 16.0, 11.31, 11.31, 45.0], SEEN, 0.5]]


CLIENT_SETTINGS = Settings(max_body_bytes=300_000, max_pixels=10_000_000)


def part(data: bytes = PNG, name: str = "file", **fields: str) -> dict[str, Any]:
    return {"data": {name: (io.BytesIO(data), "a.png"), **fields}, "content_type": "multipart/form-data"}


def read_uri(uri: str) -> NDArray[np.uint8]:
    assert uri.startswith("data:image/jpeg;base64,/9j/")
    data = np.frombuffer(base64.b64decode(uri.partition(",")[2], validate=True), np.uint8)
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_UNCHANGED), np.uint8)


def test_tr_response_equals_json_dumps_byte_for_byte(client: FlaskClient) -> None:
    response = client.post(TR, **part(is_draw="0"))
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    escaped = r"\u6b63\u54c1|\u4fc3\u9500"
    expected = (
        r'{"code": 200, "msg": "\u6210\u529f", "data": {"raw_out": [[[32.0, 12.0, 32.0, 8.0, 0.0], '
        f'"{escaped}", 0.987654], [[32.0, 16.0, 11.31, 11.31, 45.0], "{SEEN}", 0.5]], "speed_time": '
    )
    assert response.text.startswith(expected)
    assert re.fullmatch(r"\d\.\d{1,2}\}\}", response.text.removeprefix(expected))


def test_tr_draws_lines_by_default(client: FlaskClient) -> None:
    answer = json_of(client.post(TR, **part(png(400, 200))))
    assert list(answer) == ["code", "msg", "data"]
    assert list(answer["data"]) == ["raw_out", "speed_time", "img_detected"]
    drawn = read_uri(answer["data"]["img_detected"])
    assert drawn.shape == (200, 400, 3)
    # The first line's red frame runs from (100, 50) to (300, 100); the page is unchanged inside and far outside it.
    blue, green, red = drawn[50, 130].astype(int)
    assert red > 150
    assert max(blue, green) < 100
    assert abs(drawn[75, 140].astype(int) - 200).max() < 20
    assert abs(drawn[5, 5].astype(int) - 200).max() < 20


@pytest.mark.parametrize(("is_draw", "drawn"), [(None, True), ("1", True), ("", True), ("false", True), ("0", False)])
def test_tr_is_draw_is_off_only_for_zero(client: FlaskClient, is_draw: str | None, *, drawn: bool) -> None:
    sent = part() if is_draw is None else part(is_draw=is_draw)
    assert ("img_detected" in json_of(client.post(TR, **sent))["data"]) == drawn


LARGE_BODY, LARGE_TYPE = encode_multipart_formdata({"img_base64": as_base64(PNG + bytes(20_000))})
RAW = {"data": PNG, "content_type": "image/png"}
TR_WAYS: dict[str, dict[str, Any]] = {
    "img in a form": {"data": {"img": B64}, "content_type": FORM},
    "img in a multipart field": {"data": {"img": B64}, "content_type": "multipart/form-data"},
    "img in the query string": {"query_string": {"img": B64}},
    "img as JSON": {"json": {"img": B64}},
    "raw": RAW,
}


@pytest.mark.parametrize("way", ["file", "file and img", *TR_WAYS])
@pytest.mark.parametrize("path", [TR, TR.rstrip("/")])
def test_tr_supports_all_ways_of_sending_on_both_paths(client: FlaskClient, path: str, way: str) -> None:
    sent = TR_WAYS.get(way) or (part(img="!!!!") if "and" in way else part())
    response = client.post(path, **sent)
    assert response.status_code == 200
    assert json_of(response)["data"]["raw_out"] == RAW_OUT


CPP_WAYS: dict[str, dict[str, Any]] = {
    "img_base64 in a form": {"data": {"img_base64": B64}, "content_type": FORM},
    "img_base64 in the query string": {"query_string": {"img_base64": B64}},
    "img_base64 in a multipart field": {"data": LARGE_BODY, "content_type": LARGE_TYPE},
    "img_base64 as JSON": {"json": {"img_base64": B64}},
    "raw": RAW,
}


@pytest.mark.parametrize("way", ["file", *CPP_WAYS])
def test_cpp_supports_all_ways_of_sending(client: FlaskClient, way: str) -> None:
    response = client.post(CPP, **(CPP_WAYS.get(way) or part()))
    assert (response.status_code, response.headers["Content-Type"]) == (200, "text/plain; charset=UTF-8")
    assert response.data == f"{TEXT}|{SEEN}|".encode()


@pytest.mark.parametrize(("size", "compress", "seen"), data_of("trwebocr_errors")["shrunk"])
def test_tr_answers_in_pixels_of_the_shrunk_image(
    client: FlaskClient, size: tuple[int, int], compress: str | None, seen: str
) -> None:
    fields = {} if compress is None else {"compress": compress}
    data = json_of(client.post(TR, **part(png(*size), **fields)))["data"]
    (first, _, _), (_, text, _) = data["raw_out"]
    assert text.split()[0] == seen
    width, height = map(int, seen.split("x"))
    # The engine's first line covers (1/4, 1/4) to (3/4, 1/2) of the page.
    assert first == pytest.approx([width / 2, height * 3 / 8, width / 2, height / 4, 0], abs=0.5)
    assert read_uri(data["img_detected"]).shape == (height, width, 3)


DATA = {"$CUT": PNG[:40], "$BLACK": png(shade=0), "$LONG": bytes(300_001), "$LARGE": png(4000, 4000)}


@pytest.mark.parametrize(("path", "row", "status", "said"), data_of("trwebocr_errors")["rows"])
def test_errors_have_the_originals_message_and_a_proper_status(
    client: FlaskClient, path: str, row: dict[str, Any], status: int, said: str | None
) -> None:
    sent = filled(row, PAGE=B64, TEXT=as_base64(b"%PDF-1.7"))
    data = sent.get("data")
    response = client.post(path, **sent | {"data": DATA.get(data, data) if isinstance(data, str) else data})
    kind = "application/json" if path == TR else "text/plain; charset=UTF-8"
    assert (response.status_code, response.content_type) == (status, kind)
    text = response.text
    if path == TR:
        assert text.isascii()
        answer = json.loads(text)
        assert (list(answer), answer["code"]) == (["code", "msg"], status)
        text = answer["msg"]
    assert text == said if said else text


def test_invalid_requests_have_each_originals_message(client: FlaskClient) -> None:
    response, hello = client.get(TR), client.get("/hi")
    assert (response.status_code, response.text) == (404, "404 : Please use POST")
    assert (hello.status_code, hello.headers["Content-Type"], hello.text) == (200, "text/plain", "Hello World!")
