"""Umi-OCR's request for one page, and its response: the options, the lines and the text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from ocrsvc.adapters.umi_ocr.languages import NAME as LANGUAGE
from ocrsvc.adapters.umi_ocr.languages import language_choices, with_language
from ocrsvc.errors import BadBase64, BadOption, BrokenImage, CallerError, UnknownModel, UnsupportedImage
from ocrsvc.formats.boxes import to_boxes, to_frames, to_scores, whole
from ocrsvc.http.field_values import shown
from ocrsvc.http.responses import clamp_side_px, rotate_option
from ocrsvc.models.model_control import ModelList
from ocrsvc.records import Line, Page, ReadOptions

OK, NO_TEXT = 100, 101
NOT_JSON, EMPTY, NO_BASE64, NO_DICT, BAD_OPTION = 800, 801, 802, 803, 804
ENGINE_FAILED, REFUSED = 902, 903
CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (BadOption, BAD_OPTION),
    (UnknownModel, BAD_OPTION),
    (BadBase64, 300),
    (UnsupportedImage, 301),
    (BrokenImage, 301),
)
"""The code for each error; 300 and 301 are those of the engine in the original."""
UNREADABLE_IMAGES: Final = (300, 301)

LANGUAGE_TITLE: Final = "语言/模型库"
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
WORDS: Final = "data.words"
"""An option of this service alone: the original has none, and so it is not among those that are listed to clients."""
FORMATS: Final = {"dict": "含有位置等信息的原始字典", "text": "纯文本"}


class Coded(CallerError):
    """An error for which the original has a code, where ours have one for several."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.original_code = code


def to_answer(page: Page, options: Mapping[str, Any], spent_s: float) -> dict[str, object]:
    """The lines in Umi-OCR's words, or its code for no text."""
    lines = _outside(page.lines, options.get("tbpu.ignoreArea") or ())
    if not lines:
        return {"code": NO_TEXT, "data": ""}
    scores, ends = to_scores(lines, 4), to_ends(lines, str(options.get("tbpu.parser", "")))
    if options.get("data.format") == "text":
        data: object = "".join(line.text + end for line, end in zip(lines, ends, strict=True))
    else:
        columns = zip(lines, scores, whole(to_boxes(lines)).tolist(), ends, strict=True)
        data = [
            {"text": line.text, "score": score, "box": box, "end": end} | _words_of(line)
            for line, score, box, end in columns
        ]
    score = sum(scores) / len(scores)
    return {"code": OK, "data": data, "score": score, "time": round(spent_s, 4), "timestamp": time.time()}


def _words_of(line: Line) -> dict[str, object]:
    """The words of a line, if it has any, with the members of a line."""
    if line.words is None:
        return {}
    columns = zip(line.words, to_scores(line.words, 4), whole(to_boxes(line.words)).tolist(), strict=True)
    return {"words": [{"text": word.text, "score": score, "box": box} for word, score, box in columns]}


def to_read_options(options: Mapping[str, Any], *, has_models: bool) -> ReadOptions:
    """What the options ask of the engine; a language only where there is a model repository. Raises BadOption."""
    side = options.get("ocr.limit_side_len")
    read = ReadOptions(
        rotate=rotate_option(options.get("ocr.cls")),
        max_side=clamp_side_px(side) if side is not None else None,
        words=options.get(WORDS, False),
    )
    return with_language(read, options.get(LANGUAGE)) if has_models else read


def options_for(listed: ModelList) -> Mapping[str, object]:
    """What GET /api/ocr/get_options answers where there is a model repository."""
    choices = language_choices(listed)
    return {**OPTIONS, LANGUAGE: choice(LANGUAGE_TITLE, choices)} if choices else OPTIONS


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

    x1, y1, x2, y2 = np.array(areas, np.float64).reshape(-1, 4).T

    def ignored(left: float, top: float, right: float, bottom: float) -> bool:
        return bool(((x1 <= left) & (y1 <= top) & (right <= x2) & (bottom <= y2)).any())

    return [
        line
        for line, frame in zip(lines, to_frames(to_boxes(lines).round(1)).tolist(), strict=True)
        if not ignored(*frame)
    ]


def options_of(members: Mapping[str, Any], *, empty: bool) -> Mapping[str, Any]:
    """The checked options. Raises CallerError, with the original's words where it has any."""
    if empty:
        raise Coded(EMPTY, "请求为空。")
    if "base64" not in members:
        raise Coded(NO_BASE64, "请求中缺少 base64 字段。")
    options = members.get("options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise Coded(NO_DICT, "请求中 options 字段必须为字典。")
    check_options(options)
    return options


def check_options(options: Mapping[str, Any]) -> None:
    """Raises BadOption, with the original's words, for a value that an option cannot have."""
    for name, is_right in CHECKS.items():
        if name in options and not is_right(options[name]):
            raise BadOption(f"options 解释失败。 {name} 当前值不合法： {shown(options[name])[:100]}")


def _is_number(value: object) -> bool:
    return type(value) in {int, float}


def _are_areas(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(area, list)
        and len(area) == 2
        and all(isinstance(corner, list) and len(corner) == 2 and all(map(_is_number, corner)) for corner in area)
        for area in value
    )


CHECKS: Final[Mapping[str, Any]] = {
    "ocr.cls": lambda value: isinstance(value, bool),
    "ocr.limit_side_len": _is_number,
    "tbpu.parser": lambda value: isinstance(value, str) and value in PARSERS,
    "tbpu.ignoreArea": _are_areas,
    "data.format": lambda value: isinstance(value, str) and value in FORMATS,
    WORDS: lambda value: isinstance(value, bool),
}


def described(kind: str, title: str, default: object, **more: object) -> dict[str, object]:
    """One option as the original describes it to its clients."""
    return {"title": title, "type": kind, "default": default, "advanced": False, **more}


def choice(title: str, choices: Sequence[tuple[object, str]], **more: object) -> dict[str, object]:
    """An option with a value out of several, the first by default."""
    return described("enum", title, choices[0][0], optionsList=[list(each) for each in choices], **more)


OPTIONS: Final[Mapping[str, object]] = {
    LANGUAGE: choice(LANGUAGE_TITLE, MODELS),
    "ocr.cls": described(
        "boolean", "纠正文本方向", default=True, toolTip="识别方向不是正朝上的图片。关闭后按原样识别。"
    ),
    "ocr.limit_side_len": choice(
        "限制图像边长", [(side, str(side)) for side in SIDES_PX], toolTip="识别前将长边缩小到此像素值。"
    ),
    "tbpu.parser": choice("排版解析方案", tuple(PARSERS.items()), toolTip="按什么方式，解析和排序图片中的文字块"),
    "tbpu.ignoreArea": described("var", "忽略区域", [], toolTip="数组，每一项为[[左上角x,y],[右下角x,y]]。"),
    "data.format": choice(
        "数据返回格式", tuple(FORMATS.items()), toolTip='返回值字典中，["data"] 按什么格式表示OCR结果数据'
    ),
}
"""What GET /api/ocr/get_options answers without a model repository."""
