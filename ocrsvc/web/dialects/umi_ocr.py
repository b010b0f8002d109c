"""How does Umi-OCR (hiroi-sora/Umi-OCR 2.1, port 1224) speak?

Its success answer to the letter. What the caller got wrong is told in an HTTP 200 with a code of its own, as there;
what the service refuses keeps its true status beside it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import orjson
from flask import Blueprint, Response, request

from ocrsvc.errors import BadBase64, BadOption, BrokenImage, CallerError, NothingSent, OcrsvcError, UnsupportedImage
from ocrsvc.formats.columns import column, json_list, row_column, text_column
from ocrsvc.formats.corners import to_boxes, to_frames, to_scores, whole
from ocrsvc.reader import Reader
from ocrsvc.records import Line, Page, ReadOptions
from ocrsvc.settings import Settings
from ocrsvc.web.answers import is_told_in_a_200, turning, with_headers, within_bounds_px
from ocrsvc.web.failures import failure_of
from ocrsvc.web.incoming import deadline_of, first_image, left_s, receive, wish_of

BANNER: Final = "Umi-OCR v2.1.5"
# The original labels its JSON so, and pages in a browser rely on the rest.
HTML: Final = "text/html; charset=UTF-8"
CORS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "*",
    "Access-Control-Allow-Methods": "GET, POST, PUT, OPTIONS",
}

SAFE: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox"}

OK, NO_TEXT = 100, 101
NOT_JSON, EMPTY, NO_BASE64, NO_DICT, BAD_OPTION = 800, 801, 802, 803, 804
ENGINE_FAILED, REFUSED = 902, 903
CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (BadOption, BAD_OPTION),
    (BadBase64, 300),
    (UnsupportedImage, 301),
    (BrokenImage, 301),
)
"""Which code tells this error; 300 and 301 are those of the engine in the original."""

MODELS: Final = (("models/config_chinese.txt", "简体中文"), ("models/config_en.txt", "English"))
SIDES_PX: Final = (960, 2880, 4320, 999999)
PARSERS: Final[Mapping[str, str]] = {
    "multi_para": "多栏-按自然段换行",
    "multi_line": "多栏-总是换行",
    "multi_none": "多栏-无换行",
    "single_para": "单栏-按自然段换行",
    "single_line": "单栏-总是换行",
    "single_none": "单栏-无换行",
    "single_code": "单栏-保留缩进",
    "none": "不做处理",
}
FORMATS: Final = {"dict": "含有位置等信息的原始字典", "text": "纯文本"}


class _Coded(CallerError):
    """An error for which the original has a code that our errors do not tell apart."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.told = code


class _NotServed(OcrsvcError):
    """A part of the original that is not here."""

    status = 501
    code = "not_served"
    title = "Not served"


def make_umi_ocr(settings: Settings, reader: Reader) -> Blueprint:
    """POST /api/ocr, GET /api/ocr/get_options, /umiocr and / over a reader."""
    dialect = Blueprint("umi_ocr", __name__)
    dialect.register_error_handler(Exception, _failure)
    dialect.after_request(_open_to_all)

    @dialect.post("/api/ocr")
    def ocr() -> Response:
        began_s = time.monotonic()
        deadline = deadline_of(request.environ, settings.deadline_s)
        incoming = receive(request.environ, settings.max_body_bytes, deadline)
        members = dict(incoming.fields)
        options = _options_of(members, empty=not members and incoming.raw is None)
        data = first_image(incoming, (), ("base64",))
        page = reader.read(data, to_read_options(options), left_s(deadline), wish_of(request.environ)).page
        return _as_html(to_answer(page, options, time.monotonic() - began_s))

    @dialect.get("/api/ocr/get_options")
    def get_options() -> Response:
        return _as_html(OPTIONS)

    @dialect.get("/")
    @dialect.get("/umiocr")
    def banner() -> Response:
        return Response(BANNER, content_type=HTML)

    @dialect.route("/api/doc/<path:_rest>", methods=["GET", "POST"])
    @dialect.route("/api/qrcode", methods=["POST"])
    def not_served(_rest: str = "") -> Response:
        raise _NotServed("Documents and QR codes are not served here; /api/ocr reads images.")

    return dialect


def to_answer(page: Page, options: Mapping[str, Any], spent_s: float) -> dict[str, object]:
    """The lines in Umi-OCR's words, or its code for no text."""
    lines = _outside(page.lines, options.get("tbpu.ignoreArea") or ())
    if not lines:
        return {"code": NO_TEXT, "data": ""}
    scores, ends = to_scores(lines, 4), to_ends(lines, str(options.get("tbpu.parser", "")))
    if options.get("data.format") == "text":
        data: object = "".join(line.text + end for line, end in zip(lines, ends, strict=True))
    else:
        data = json_list(
            b'{"text":%,"score":%,"box":[[%]],"end":%}',
            text_column(lines),
            column(scores),
            row_column(whole(to_boxes(lines))),
            column(ends),
        )
    score = sum(scores) / len(scores)
    return {"code": OK, "data": data, "score": score, "time": round(spent_s, 4), "timestamp": time.time()}


def to_read_options(options: Mapping[str, Any]) -> ReadOptions:
    """What the options ask of the engine."""
    side = options.get("ocr.limit_side_len")
    return ReadOptions(
        rotate=turning(options.get("ocr.cls")), max_side=within_bounds_px(side) if side is not None else None
    )


def to_ends(lines: Sequence[Line], parser: str) -> list[str]:
    """What separates each line from the next; nothing follows the last one.

    A line break; for the parsers without breaks, a blank where Latin letters would meet.
    """
    if not parser.endswith("_none"):
        return ["\n"] * (len(lines) - 1) + [""]
    pairs = pairwise(lines)
    return [" " if _is_latin(a.text[-1:]) and _is_latin(b.text[:1]) else "" for a, b in pairs] + [""]


def _is_latin(letter: str) -> bool:
    return letter.isascii() and not letter.isspace()


def _outside(lines: Sequence[Line], areas: Sequence[Any]) -> Sequence[Line]:
    """The lines that do not lie wholly inside one of the areas."""
    if not areas or not lines:
        return lines

    def ignored(left: float, top: float, right: float, bottom: float) -> bool:
        return any(x1 <= left and y1 <= top and right <= x2 and bottom <= y2 for (x1, y1), (x2, y2) in areas)

    return [
        line
        for line, frame in zip(lines, to_frames(to_boxes(lines).round(1)).tolist(), strict=True)
        if not ignored(*frame)
    ]


def _options_of(members: Mapping[str, Any], *, empty: bool) -> Mapping[str, Any]:
    """The checked options. Raises CallerError, with the original's words where it has any."""
    if empty:
        raise _Coded(EMPTY, "请求为空。")
    if "base64" not in members:
        raise _Coded(NO_BASE64, "请求中缺少 base64 字段。")
    options = members.get("options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise _Coded(NO_DICT, "请求中 options 字段必须为字典。")
    for name, is_right in _CHECKS.items():
        if name in options and not is_right(options[name]):
            raise BadOption(f"options 解释失败。 {name} 当前值不合法： {str(options[name])[:100]}")
    return options


def _is_number(value: object) -> bool:
    return type(value) in {int, float}


def _are_areas(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(area, list)
        and len(area) == 2
        and all(isinstance(corner, list) and len(corner) == 2 and all(map(_is_number, corner)) for corner in area)
        for area in value
    )


_CHECKS: Final[Mapping[str, Any]] = {
    "ocr.cls": lambda value: isinstance(value, bool),
    "ocr.limit_side_len": _is_number,
    "tbpu.parser": lambda value: isinstance(value, str) and value in PARSERS,
    "tbpu.ignoreArea": _are_areas,
    "data.format": lambda value: isinstance(value, str) and value in FORMATS,
}


def _choice(title: str, choices: Sequence[tuple[object, str]]) -> dict[str, object]:
    listed = [list(choice) for choice in choices]
    return {"title": title, "optionsList": listed, "type": "enum", "default": choices[0][0], "advanced": False}


OPTIONS: Final[Mapping[str, object]] = {
    "ocr.language": _choice("语言/模型库", MODELS),
    "ocr.cls": {
        "title": "纠正文本方向",
        "default": True,
        "toolTip": "识别方向不是正朝上的图片。关闭后按原样识别。",
        "type": "boolean",
        "advanced": False,
    },
    "ocr.limit_side_len": _choice("限制图像边长", [(side, str(side)) for side in SIDES_PX])
    | {"toolTip": "识别前将长边缩小到此像素值。"},
    "tbpu.parser": _choice("排版解析方案", tuple(PARSERS.items()))
    | {"toolTip": "按什么方式，解析和排序图片中的文字块"},
    "tbpu.ignoreArea": {
        "title": "忽略区域",
        "toolTip": "数组，每一项为[[左上角x,y],[右下角x,y]]。",
        "default": [],
        "type": "var",
        "advanced": False,
    },
    "data.format": _choice("数据返回格式", tuple(FORMATS.items()))
    | {"toolTip": '返回值字典中，["data"] 按什么格式表示OCR结果数据'},
}
"""What GET /api/ocr/get_options answers."""


def _open_to_all(response: Response) -> Response:
    response.headers.extend(CORS)
    return response


def _failure(error: Exception) -> Response:
    failure = failure_of(error)
    if failure.status in {404, 405}:
        answer = Response(f"<h1>Error: {failure.status} {failure.title}</h1>\n", failure.status, content_type=HTML)
        return with_headers(answer, failure)
    # The original tells that its engine broke in a 200, too; a refusal keeps its status for those who retry.
    in_a_200 = is_told_in_a_200(error) or (isinstance(error, OcrsvcError) and failure.code == "engine_failed")
    answer = _as_html({"code": _code(error, failure.code), "data": str(failure)}, 200 if in_a_200 else failure.status)
    return with_headers(answer, failure)


def _as_html(answer: object, status: int = 200) -> Response:
    """JSON that a browser takes for a page, as the original labels it: with nothing in it that could become markup.

    What a client sent, or wrote on a picture, comes back in it; the escapes are the same JSON once it is parsed.
    """
    body = orjson.dumps(answer)
    for sign in (b"<", b">", b"&"):
        body = body.replace(sign, b"\\u%04x" % sign[0])
    return Response(body, status, SAFE, content_type=HTML)


def _code(error: Exception, name: str) -> int:
    if isinstance(error, _Coded):
        return error.told
    if isinstance(error, NothingSent):
        return NO_BASE64
    if type(error) is CallerError:
        return NOT_JSON
    told = next((code for kind, code in CODES if isinstance(error, kind)), None)
    return told or (ENGINE_FAILED if name in {"engine_failed", "image_crashes_engine"} else REFUSED)
