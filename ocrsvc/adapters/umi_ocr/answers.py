"""Umi-OCR's answers about one page, its codes, and the checks of requests that have codes of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from ocrsvc.adapters.answer_values import placed_texts
from ocrsvc.adapters.umi_ocr.options import ImageOptions
from ocrsvc.errors import BadBase64, BadOption, BrokenImage, CallerError, NothingSent, UnknownModel, UnsupportedImage
from ocrsvc.formats.boxes import to_boxes, to_frames
from ocrsvc.http.request import request
from ocrsvc.records import Line, Page

OK, NO_TEXT = 100, 101
NOT_JSON, EMPTY, NO_BASE64, NO_DICT, BAD_OPTION = 800, 801, 802, 803, 804
ENGINE_FAILED, REFUSED = 902, 903
CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (NothingSent, NO_BASE64),
    (BadOption, BAD_OPTION),
    (UnknownModel, BAD_OPTION),
    (BadBase64, 300),
    (UnsupportedImage, 301),
    (BrokenImage, 301),
)
"""The code for each error; 300 and 301 are those of the engine in the original."""
UNREADABLE_IMAGES: Final = (300, 301)


class Coded(CallerError):
    """An error for which the original has a code, where ours have one for several."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.original_code = code


def code_in(codes: Sequence[tuple[type[Exception], int]], error: Exception, not_json: int) -> int | None:
    """The original's code for this error; None where these have none."""
    if isinstance(error, Coded):
        return error.original_code
    if type(error) is CallerError:
        return not_json
    return next((code for kind, code in codes if isinstance(error, kind)), None)


def checked_members(*needed: str, missing: str, may_be_empty: bool = False) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The members of this thread's request, and its options. Raises Coded, with the original's words."""
    content = request.content
    members = content.members
    if content.raw is None and not (content.fields if may_be_empty else members):
        raise Coded(EMPTY, "请求为空。")
    if not any(name in members for name in needed):
        raise Coded(NO_BASE64, missing)
    options = members.get("options")
    if options is not None and not isinstance(options, dict):
        raise Coded(NO_DICT, "请求中 options 字段必须为字典。")
    return members, options or {}


def to_answer(page: Page, options: ImageOptions, spent_s: float) -> dict[str, object]:
    """The lines in Umi-OCR's words, or its code for no text."""
    lines = _outside(page.lines, options.ignored)
    if not lines:
        return {"code": NO_TEXT, "data": ""}
    ends = to_ends(lines, options.parser or "")
    items = [
        {"text": text, "score": score, "box": box, "end": end, **_words_of(line)}
        for line, (text, score, box), end in zip(lines, placed_texts(lines, score_digits=4), ends, strict=True)
    ]
    data: object = items
    if options.form == "text":
        data = "".join(line.text + end for line, end in zip(lines, ends, strict=True))
    score = sum(item["score"] for item in items) / len(items)
    return {"code": OK, "data": data, "score": score, "time": round(spent_s, 4), "timestamp": time.time()}


def _words_of(line: Line) -> dict[str, Any]:
    """The words of a line, if it has any, with the members of a line."""
    if line.words is None:
        return {}
    placed = placed_texts(line.words, score_digits=4)
    return {"words": [{"text": text, "score": score, "box": box} for text, score, box in placed]}


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


def _outside(lines: Sequence[Line], areas: Sequence[object]) -> Sequence[Line]:
    """The lines that do not lie wholly inside one of the areas."""
    if not areas or not lines:
        return lines
    x1, y1, x2, y2 = np.array(areas, np.float64).reshape(-1, 4).T

    def ignored(left: float, top: float, right: float, bottom: float) -> bool:
        return bool(((x1 <= left) & (y1 <= top) & (right <= x2) & (bottom <= y2)).any())

    frames = to_frames(to_boxes(lines).round(1)).tolist()
    return [line for line, frame in zip(lines, frames, strict=True) if not ignored(*frame)]
