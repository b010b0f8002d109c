"""The adapters of TrWebOCR and TrWebOCR.cpp: the originals' answers and errors."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
from flask.testing import FlaskClient
from numpy.typing import NDArray
from urllib3.filepost import encode_multipart_formdata
from web_support import TEXT, as_base64, client_raising, json_of, picture, running_app

from ocrsvc import errors
from ocrsvc.adapters.trwebocr.tr_rects import shrunk_size, to_rects
from ocrsvc.settings.settings import Settings

TR, CPP = "/api/tr-run/", "/api/trocr"
PNG = picture(64, 32)
B64 = as_base64(PNG)
FORM = "application/x-www-form-urlencoded"
SEEN = "64x32 auto True False None"

# Worked out by hand from the boxes in web_support: a rectangle of 32 x 8, and a square with sides of sqrt(2) * 8 on its
# tip.
RAW_OUT = [
    [[32.0, 12.0, 32.0, 8.0, 0.0], TEXT, 0.987654],
    [[32.0, 16.0, 11.31, 11.31, 45.0], SEEN, 0.5],
]


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    with running_app(Settings(max_body_bytes=300_000, max_pixels=10_000_000)) as app:
        yield app.test_client()


def part(data: bytes = PNG, name: str = "file", **fields: str) -> dict[str, Any]:
    return {"data": {name: (io.BytesIO(data), "a.png"), **fields}, "content_type": "multipart/form-data"}


def read_uri(uri: str) -> NDArray[np.uint8]:
    assert uri.startswith("data:image/jpeg;base64,/9j/")
    data = np.frombuffer(base64.b64decode(uri.partition(",")[2], validate=True), np.uint8)
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_UNCHANGED), np.uint8)


def test_tr_answers_byte_for_byte_what_json_dumps_wrote(client: FlaskClient) -> None:
    response = client.post(TR, **part(is_draw="0"))
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    escaped = r"\u6b63\u54c1|\u4fc3\u9500"
    expected = (
        r'{"code": 200, "msg": "\u6210\u529f", "data": {"raw_out": [[[32.0, 12.0, 32.0, 8.0, 0.0], '
        f'"{escaped}", 0.987654], [[32.0, 16.0, 11.31, 11.31, 45.0], "{SEEN}", 0.5]], "speed_time": '
    )
    assert response.text.startswith(expected)
    assert re.fullmatch(r"\d\.\d{1,2}\}\}", response.text.removeprefix(expected))


def test_tr_draws_the_lines_unless_told_not_to(client: FlaskClient) -> None:
    answer = json_of(client.post(TR, **part(picture(400, 200))))
    assert list(answer) == ["code", "msg", "data"]
    assert list(answer["data"]) == ["raw_out", "speed_time", "img_detected"]
    drawn = read_uri(answer["data"]["img_detected"])
    assert drawn.shape == (200, 400, 3)
    # The first line's frame is red and runs from (100, 50) to (300, 100); nothing is drawn inside and far outside.
    blue, green, red = drawn[50, 130].astype(int)
    assert red > 150
    assert max(blue, green) < 100
    assert abs(drawn[75, 140].astype(int) - 200).max() < 20
    assert abs(drawn[5, 5].astype(int) - 200).max() < 20


@pytest.mark.parametrize(("is_draw", "drawn"), [(None, True), ("1", True), ("", True), ("false", True), ("0", False)])
def test_tr_takes_only_a_zero_as_no(client: FlaskClient, is_draw: str | None, *, drawn: bool) -> None:
    sent = part() if is_draw is None else part(is_draw=is_draw)
    assert ("img_detected" in json_of(client.post(TR, **sent))["data"]) == drawn


TR_WAYS: dict[str, dict[str, Any]] = {
    "file": part(),
    "img in a form": {"data": {"img": B64}, "content_type": FORM},
    "img in a multipart field": {"data": {"img": B64}, "content_type": "multipart/form-data"},
    "img in the query string": {"query_string": {"img": B64}},
    "img with blanks around it": {"data": {"img": f"\n {B64} "}, "content_type": FORM},
    "img with bare plus signs": {"data": f"img={B64}", "content_type": FORM},
    "img as a data URI": {"data": {"img": f"data:image/png;base64,{B64}"}, "content_type": FORM},
    "img without padding": {"data": {"img": B64.rstrip("=")}, "content_type": FORM},
    "img as JSON": {"json": {"img": B64}},
    "raw": {"data": PNG, "content_type": "image/png"},
    "file and img": part(img="!!!!"),
}


@pytest.mark.parametrize("way", TR_WAYS)
@pytest.mark.parametrize("path", [TR, TR.rstrip("/")])
def test_tr_reads_every_way_of_sending_with_and_without_the_last_slash(
    client: FlaskClient, path: str, way: str
) -> None:
    sent = TR_WAYS[way]
    if "data" in sent and isinstance(sent["data"], dict) and "file" in sent["data"]:
        sent = part(**{name: value for name, value in sent["data"].items() if name != "file"})
    response = client.post(path, **sent)
    assert response.status_code == 200
    assert json_of(response)["data"]["raw_out"] == RAW_OUT


@pytest.mark.parametrize(
    ("size", "compress", "seen"),
    [
        ((1700, 850), None, "1600x800"),
        ((1600, 10), None, "1600x10"),
        ((1700, 850), "0", "1700x850"),
        ((1700, 850), "-1", "1700x850"),
        ((1700, 850), " 850 ", "850x425"),
        ((1700, 850), "+850", "850x425"),
        ((1000, 1001), "100", "100x100"),
        ((64, 32), "1600", "64x32"),
    ],
)
def test_tr_shrinks_to_the_longest_side_and_answers_in_pixels_of_the_shrunk_image(
    client: FlaskClient, size: tuple[int, int], compress: str | None, seen: str
) -> None:
    fields = {} if compress is None else {"compress": compress}
    data = json_of(client.post(TR, **part(picture(*size), **fields)))["data"]
    (first, _, _), (_, text, _) = data["raw_out"]
    assert text.split()[0] == seen
    width, height = map(int, seen.split("x"))
    # The engine's first line runs from (1/4, 1/4) to (3/4, 1/2) of the page.
    assert first == pytest.approx([width / 2, height * 3 / 8, width / 2, height / 4, 0], abs=0.5)
    assert read_uri(data["img_detected"]).shape == (height, width, 3)


@pytest.mark.parametrize(
    ("size", "max_side", "expected"),
    [
        # int(x / scale + 0.5), as in the original: 1001 / 10.01 = 100, 1000 / 10.01 = 99.9.
        ((1000, 1001), 100, (100, 100)),
        ((3000, 7), 10, (10, 1)),
        ((333, 250), 100, (100, 75)),
    ],
)
def test_the_shrunk_size_is_rounded_as_in_the_original(
    size: tuple[int, int], max_side: int, expected: tuple[int, int]
) -> None:
    assert shrunk_size(*size, max_side) == expected


@pytest.mark.parametrize("angle", [-80, -45, -10, 0, 10, 45, 80, 135, 180])
def test_a_rectangle_is_the_one_that_opencv_draws_back(angle: float) -> None:
    corners = cv2.boxPoints(((200.0, 100.0), (60.0, 20.0), angle))
    # boxPoints begins at one of the corners and goes on clockwise; reading begins where w runs along the angle.
    start = next(
        n for n in range(4) if np.allclose(corners[(n + 1) % 4] - corners[n], direction(angle) * 60, atol=0.01)
    )
    cx, cy, w, h, turned = to_rects(np.roll(corners, -start, axis=0)[None].astype(np.float64))[0]
    assert (cx, cy, w, h) == pytest.approx((200, 100, 60, 20), abs=0.01)
    assert (turned - angle) % 360 == pytest.approx(0, abs=0.01)


def direction(angle: float) -> NDArray[np.float64]:
    return np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])


TR_REFUSED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "nothing": ({}, 400, "没有传入参数"),
    "an empty form": ({"data": {"compress": "x"}, "content_type": FORM}, 400, "没有传入参数"),
    "an empty img": ({"data": {"img": ""}, "content_type": FORM}, 400, "没有传入参数"),
    "a bad compress": ({"query_string": {"img": B64, "compress": "big"}}, 400, "compress参数类型有误，只能是int类型"),
    "a compress of Python's own": (
        {"query_string": {"img": B64, "compress": "1_0"}},
        400,
        "compress参数类型有误，只能是int类型",
    ),
    "a compress with a fraction": (
        {"query_string": {"img": B64, "compress": "1.5"}},
        400,
        "compress参数类型有误，只能是int类型",
    ),
    "bad base64": ({"data": {"img": "!!!!"}, "content_type": FORM}, 400, None),
    "no image": ({"data": {"img": as_base64(b"%PDF-1.7")}, "content_type": FORM}, 415, None),
    "a broken image": ({"data": PNG[:40], "content_type": "image/png"}, 422, None),
    "too many bytes": ({"data": bytes(300_001), "content_type": "image/png"}, 413, None),
    "too many pixels": ({"data": picture(4000, 4000), "content_type": "image/png"}, 413, None),
    "a black page": ({"data": picture(shade=0), "content_type": "image/png"}, 500, None),
}


@pytest.mark.parametrize("case", TR_REFUSED)
def test_tr_refuses_in_its_own_shape_with_a_true_status(client: FlaskClient, case: str) -> None:
    sent, status, message = TR_REFUSED[case]
    response = client.post(TR, **sent)
    assert (response.status_code, response.content_type) == (status, "application/json")
    answer = json.loads(response.text)
    assert list(answer) == ["code", "msg"]
    assert answer["code"] == status
    assert answer["msg"] == message if message else answer["msg"]
    assert response.text.isascii()


def test_tr_answers_get_with_its_404(client: FlaskClient) -> None:
    response = client.get(TR)
    assert (response.status_code, response.text) == (404, "404 : Please use POST")


ANY_ERROR = [
    (errors.QueueFull("Full.", retry_after_s=3), 503, "3"),
    (errors.NotReady("Loading.", retry_after_s=2), 503, "2"),
    (errors.DeadlineExceeded("Late."), 504, None),
    (errors.EngineFailed("Broken."), 500, None),
    (KeyError("a secret"), 500, None),
]


@pytest.mark.parametrize(("error", "status", "retry_after"), ANY_ERROR)
@pytest.mark.parametrize("path", [TR, CPP])
def test_what_is_not_the_clients_fault_is_reported_by_the_status_and_never_as_a_200(
    path: str, error: Exception, status: int, retry_after: str | None
) -> None:
    response = client_raising(error).post(path, **part())
    assert response.status_code == status
    assert response.headers.get("Retry-After") == retry_after
    assert "secret" not in response.text
    if path == TR:
        assert json_of(response)["code"] == status
    else:
        assert response.content_type == "text/plain; charset=UTF-8"


def test_cpp_answers_each_line_followed_by_a_bar(client: FlaskClient) -> None:
    response = client.post(CPP, **part())
    assert (response.status_code, response.headers["Content-Type"]) == (200, "text/plain; charset=UTF-8")
    assert response.data == f"{TEXT}|{SEEN}|".encode()


def large_form() -> dict[str, Any]:
    body, content_type = encode_multipart_formdata({"img_base64": as_base64(PNG + bytes(20_000))})
    return {"data": body, "content_type": content_type}


CPP_WAYS: dict[str, dict[str, Any]] = {
    "img_base64 in a form": {"data": {"img_base64": B64}, "content_type": FORM},
    "img_base64 in the query string": {"query_string": {"img_base64": B64}},
    "img_base64 in a form of more than 8192 bytes": {
        "data": {"img_base64": as_base64(PNG + bytes(20_000))},
        "content_type": FORM,
    },
    "img_base64 in a multipart field": large_form(),
    "img_base64 as JSON": {"json": {"img_base64": B64}},
    "raw": {"data": PNG, "content_type": "image/png"},
}


@pytest.mark.parametrize("way", CPP_WAYS)
def test_cpp_reads_every_way_of_sending(client: FlaskClient, way: str) -> None:
    response = client.post(CPP, **CPP_WAYS[way])
    assert (response.status_code, response.text) == (200, f"{TEXT}|{SEEN}|")


CPP_REFUSED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "nothing": ({}, 400, "Missing file or img_base64 parameter"),
    "another field": (part(name="photo"), 400, "Missing file or img_base64 parameter"),
    "bad base64": ({"query_string": {"img_base64": "!!!!"}}, 400, "Failed to load image"),
    "no image": ({"data": b"%PDF-1.7", "content_type": "image/png"}, 415, "Failed to load image"),
    "a broken image": ({"data": PNG[:40], "content_type": "image/png"}, 422, "Failed to load image"),
    "bad JSON": ({"data": "{", "content_type": "application/json"}, 400, "Invalid JSON data"),
    "too many bytes": ({"data": bytes(300_001), "content_type": "image/png"}, 413, None),
    "too many pixels": ({"data": picture(4000, 4000), "content_type": "image/png"}, 413, None),
}


@pytest.mark.parametrize("case", CPP_REFUSED)
def test_cpp_refuses_in_its_own_words_with_a_true_status(client: FlaskClient, case: str) -> None:
    sent, status, message = CPP_REFUSED[case]
    response = client.post(CPP, **sent)
    assert (response.status_code, response.content_type) == (status, "text/plain; charset=UTF-8")
    assert response.text == message if message else "limit" in response.text


def test_cpp_says_hello(client: FlaskClient) -> None:
    response = client.get("/hi")
    assert (response.status_code, response.headers["Content-Type"], response.text) == (
        200,
        "text/plain",
        "Hello World!",
    )
