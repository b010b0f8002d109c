"""The adapters answer what the real servers answered: the same status, type and structure.

Each recorded exchange is replayed, at the adapter's usual port. Where our answer differs, the row says in what and why:
a crash of the original becomes an error that tells what is wrong, and what it refuses needlessly is served.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from documents import GRAY, pdf, tiff
from flask.testing import FlaskClient
from golden import differences, parse_json, read_golden
from image_support import png
from web_support import as_base64, running_app

from ocrsvc.plugins import adapters
from ocrsvc.settings.settings import Settings

PNG = png()
B64 = as_base64(PNG)
WHITE, BLACK = as_base64(png(shade=255)), as_base64(png(shade=0))


@dataclass(frozen=True, slots=True)
class Case:
    """One exchange; where the answer differs from the recorded one, why, its status, and whose structure it has."""

    method: str
    path: str
    sent: Mapping[str, Any] = field(default_factory=dict)
    differs: str = ""
    status: int | None = None
    like: str = ""
    equal: tuple[str, ...] = ()
    """Members that must be equal to the recorded ones."""


def part(name: str = "image_file", data: bytes = PNG, **fields: str) -> dict[str, Any]:
    return {"data": {name: (io.BytesIO(data), "a.png"), **fields}}


def form(**fields: str) -> dict[str, Any]:
    return {"data": fields}


def text_part(**fields: str) -> dict[str, Any]:
    return {"data": fields, "content_type": "multipart/form-data"}


def body(text: str, content_type: str | None = "application/json") -> dict[str, Any]:
    return {"data": text, "content_type": content_type}


CRASH = "the original crashes with a 500"
FILE_REFUSED = {"like": "POST image_file as text"}
RAPIDOCR = {
    "GET /": Case("GET", "/"),
    "GET /health": Case("GET", "/nothing/here"),
    "GET /ocr": Case("GET", "/ocr"),
    "POST file": Case("POST", "/ocr", part()),
    "POST file no text": Case("POST", "/ocr", part(data=png(shade=255))),
    "POST base64 urlencoded": Case("POST", "/ocr", form(image_data=B64)),
    "POST base64 multipart": Case("POST", "/ocr", text_part(image_data=B64)),
    "POST data-uri base64": Case(
        "POST", "/ocr", form(image_data="data:image/png;base64," + B64), CRASH, 200, "POST file"
    ),
    "POST use_det=False": Case("POST", "/ocr", part(use_det="False"), CRASH, 200, "POST file"),
    "POST use_det=maybe": Case("POST", "/ocr", part(use_det="maybe"), equal=("detail",)),
    "POST use_det=empty": Case("POST", "/ocr", part(use_det="")),
    "POST nothing": Case("POST", "/ocr", {}, CRASH, 400, "GET /ocr"),
    "POST json": Case("POST", "/ocr", body("{}"), CRASH, 400, "GET /ocr"),
    "POST bad image": Case("POST", "/ocr", part(data=b"hello"), CRASH, 415, "GET /ocr"),
    "POST image_file as text": Case(
        "POST", "/ocr", form(image_file="hello"), "without pydantic's empty ctx", 422, "POST use_det=maybe"
    ),
}


def px(**members: object) -> dict[str, Any]:
    return body(json.dumps({"file": B64, "fileType": 1, **members}))


KINDER = "served, because what is meant is plain"
PADDLEX = {
    "health": Case("GET", "/health", differs="has `status` too, for TurboOCR's clients", status=200, like="not found"),
    "health post": Case("POST", "/health", equal=("errorMsg",)),
    "not found": Case("GET", "/nope", equal=("errorMsg",)),
    "root": Case("GET", "/", differs="another adapter's banner", status=200),
    "get /ocr": Case("GET", "/ocr", equal=("errorMsg",)),
    "image, defaults": Case("POST", "/ocr", px()),
    "image, visualize false, logId": Case("POST", "/ocr", px(visualize=False, logId="abc-1"), equal=("logId",)),
    "image, orientation on, visualize false": Case("POST", "/ocr", px(visualize=False, useDocOrientationClassify=True)),
    "image, orientation on, visualize true": Case("POST", "/ocr", px(useDocOrientationClassify=True)),
    "no fileType": Case("POST", "/ocr", body(json.dumps({"file": B64})), KINDER, 200, "image, defaults"),
    "fileType 2": Case("POST", "/ocr", px(fileType=2, logId="L"), equal=("logId", "errorMsg")),
    "fileType '1' string": Case("POST", "/ocr", px(fileType="1"), equal=("errorMsg",)),
    "fileType null": Case("POST", "/ocr", px(fileType=None, visualize=False), KINDER, 200, "string bool"),
    "no file": Case("POST", "/ocr", body("{}"), equal=("errorMsg",)),
    "bad base64": Case("POST", "/ocr", px(file="!!!!"), equal=("errorMsg",)),
    "not an image": Case("POST", "/ocr", px(file=as_base64(b"hello")), equal=("errorMsg",)),
    "not a pdf": Case("POST", "/ocr", px(fileType=0), equal=("errorMsg",)),
    "data uri": Case(
        "POST", "/ocr", px(file="data:image/png;base64," + B64, visualize=False), KINDER, 200, "string bool"
    ),
    "url without suffix, no fileType": Case(
        "POST", "/ocr", px(file="http://127.0.0.1:9/x", fileType=None), "addresses are not fetched", 422, "no file"
    ),
    "url unreachable": Case("POST", "/ocr", px(file="http://127.0.0.1:9/x.png"), equal=("errorMsg",)),
    "unknown field": Case("POST", "/ocr", px(visualize=False, other=1)),
    "string bool": Case("POST", "/ocr", px(visualize="false")),
    "bad types": Case("POST", "/ocr", px(file=1, visualize="maybe")),
    "not json": Case("POST", "/ocr", body("{not json")),
    "json but no content type": Case(
        "POST", "/ocr", {**px(visualize=False), "content_type": None}, KINDER, 200, "string bool"
    ),
    "form content type": Case("POST", "/ocr", body("a=1", "application/x-www-form-urlencoded")),
    "pipeline error": Case("POST", "/ocr", px(file=BLACK)),
    "tiff 12 frames": Case("POST", "/ocr", px(visualize=False, file=as_base64(tiff([40] * 12)))),
    "pdf 12 pages": Case("POST", "/ocr", px(visualize=False, fileType=0, file=as_base64(pdf(*[GRAY] * 12)))),
}


def ps(**members: object) -> dict[str, Any]:
    return body(json.dumps({"key": ["image"], "value": [B64], **members}), None)


SERVING = {
    "ok": Case("POST", "/ocr/prediction", ps(), equal=("err_no", "err_msg", "key")),
    "ok with logid, clientip, content-type json": Case(
        "POST", "/ocr/prediction", ps(logid=7, clientip="1.2.3.4", tensors=[]), equal=("err_no",)
    ),
    "any method name": Case("POST", "/ocr/whatever", ps(), equal=("err_no",)),
    "wrong service name": Case("POST", "/nope/prediction", ps(), equal=("err_no", "err_msg")),
    "bad json": Case("POST", "/ocr/prediction", body('{"key":', None), equal=("code",)),
    "empty body": Case(
        "POST", "/ocr/prediction", {}, "the stub behind the recording needs no image", 200, "wrong service name"
    ),
    "unknown field": Case("POST", "/ocr/prediction", ps(other=1), equal=("err_no",)),
    "wrong type": Case("POST", "/ocr/prediction", ps(key="image"), equal=("code",)),
    "handler raises": Case("POST", "/ocr/prediction", ps(value=[BLACK]), equal=("code",)),
    "GET": Case("GET", "/ocr/prediction"),
    "not found": Case("POST", "/nope"),
    "trailing slash": Case("POST", "/ocr/prediction/"),
    "5 MB body": Case("POST", "/ocr/prediction", ps(value=[as_base64(PNG + bytes(4 << 20))]), equal=("err_no",)),
}


def umi(base64: str = B64, **options: object) -> dict[str, Any]:
    return body(json.dumps({"base64": base64, "options": {key.replace("__", "."): v for key, v in options.items()}}))


UMI = {
    "root": Case("GET", "/"),
    "umiocr": Case("GET", "/umiocr"),
    "ocr get_options": Case("GET", "/api/ocr/get_options"),
    "ocr ok dict": Case("POST", "/api/ocr", umi(), equal=("code",)),
    "ocr ok text": Case("POST", "/api/ocr", umi(data__format="text"), equal=("code",)),
    "ocr no text": Case("POST", "/api/ocr", umi(WHITE), equal=("code", "data")),
    "ocr crash": Case("POST", "/api/ocr", umi(BLACK), equal=("code",)),
    "ocr no content type": Case("POST", "/api/ocr", {**umi(), "content_type": None}, KINDER, 200, "ocr ok dict"),
    "ocr form content type (curl default)": Case(
        "POST",
        "/api/ocr",
        {**umi(), "content_type": "application/x-www-form-urlencoded"},
        KINDER,
        200,
        "ocr ok dict",
    ),
    "ocr bad json": Case("POST", "/api/ocr", body("{not json"), equal=("code",)),
    "ocr empty": Case("POST", "/api/ocr", {}, equal=("code", "data")),
    "ocr {}": Case("POST", "/api/ocr", body("{}"), equal=("code", "data")),
    "ocr no base64": Case("POST", "/api/ocr", body('{"options": {}}'), equal=("code", "data")),
    "ocr options not dict": Case(
        "POST", "/api/ocr", body(json.dumps({"base64": B64, "options": []})), equal=("code", "data")
    ),
    "ocr bad ignoreArea": Case("POST", "/api/ocr", umi(tbpu__ignoreArea=[[1, 2]]), equal=("code",)),
    "ocr GET": Case("GET", "/api/ocr"),
    "qrcode": Case("POST", "/api/qrcode", umi(WHITE), equal=("code", "data")),
    "qrcode nothing": Case("POST", "/api/qrcode", body('{"options": {}}'), equal=("code", "data")),
    "404": Case("GET", "/nope"),
    "OPTIONS": Case("OPTIONS", "/api/ocr", {}, "pages in a browser ask so before they post", 200, ""),
}
# Documents need a task; test_umi_documents replays them.
NOT_SERVED = ("doc ",)

GOLDEN = {
    "rapidocr_api": ("rapidocr_api.txt", RAPIDOCR),
    "paddlex": ("paddlex_ocr.txt", PADDLEX),
    "paddle_serving": ("paddle_serving_pipeline.txt", SERVING),
    "umi_ocr": ("umi_ocr.txt", UMI),
}


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    with running_app(Settings(usual_ports=tuple(GOLDEN))) as app:
        yield app.test_client()


@pytest.mark.parametrize(("adapter", "title"), [(name, title) for name in GOLDEN for title in GOLDEN[name][1]])
def test_a_recorded_exchange_is_answered_as_it_was(client: FlaskClient, adapter: str, title: str) -> None:
    name, cases = GOLDEN[adapter]
    golden, case = read_golden(name), cases[title]
    expected = golden[case.like or title]
    url = f"http://127.0.0.1:{adapters()[adapter].port}"
    response = client.open(case.path, method=case.method, base_url=url, **case.sent)
    assert response.status_code == (case.status or expected.status)
    if case.differs and not case.like:
        return
    answer = parse_json(response.text)
    assert (response.mimetype, answer is None) == (expected.mimetype, expected.json is None)
    if case.like and title == "health":
        answer.pop("status")
    assert differences(expected.json, answer) == []
    for member in case.equal:
        sent, answered = golden[title].json[member], answer[member]
        # Our messages may go on where the recorded one ends.
        assert answered == sent or (isinstance(sent, str) and answered.startswith(sent.rstrip(".")))


def test_every_recorded_exchange_is_replayed_or_listed_as_not_served() -> None:
    for name, cases in GOLDEN.values():
        left = {title for title in read_golden(name) if not title.startswith(NOT_SERVED)} - set(cases)
        assert left <= {"openapi"}


@pytest.mark.parametrize(
    ("expected", "alike", "others"),
    [
        ({"a": 1, "b": "x"}, {"b": "", "a": 2}, [{"a": 1.0, "b": "x"}, {"a": True, "b": "x"}, {"a": 1}, None]),
        ({"a": 1}, {"a": 2}, [{"a": 1, "b": 1}]),
        ([], [1, "x"], [{}]),
        ([[1.0, 2.0]], [[3.0], [4.0, 5.0]], [[], [["x"]]]),
        ([1, "x"], [2, "y"], [[1, 2], [1]]),
        ({"0": {"a": 1}}, {"0": {"a": 2}, "1": {"a": 3}}, [{"0": {"a": "x"}}, {"a": {"a": 1}}]),
        ([{"a": [1]}], [{"a": [2, 3]}, {"a": [4]}], [[{"a": ["x"]}], [1, "x"]]),
    ],
)
def test_another_key_or_type_is_found_and_values_may_differ(expected: object, alike: object, others: list[Any]) -> None:
    assert differences(expected, alike) == []
    assert all(differences(expected, other) for other in others)
