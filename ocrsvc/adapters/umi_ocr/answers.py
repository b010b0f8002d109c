"""Umi-OCR's options, page responses and codes; options.json describes the options to clients."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import orjson
from pydantic import Field

from ocrsvc.adapters.context import CodedError, RequestValues, texts_with_corners
from ocrsvc.errors import BadBase64, BadOption, BrokenImage, NothingSent, OcrsvcError, UnknownModel, UnsupportedImage
from ocrsvc.formats.boxes import to_boxes, to_frames
from ocrsvc.http.field_values import shown
from ocrsvc.http.options import read_options
from ocrsvc.http.request import request
from ocrsvc.http.responses import clamp_side_px, rotate_option
from ocrsvc.models.model_control import ModelList
from ocrsvc.results import Line, Page, ReadOptions, Word

_Parser = Literal[
    "multi_para", "multi_line", "multi_none", "single_para", "single_line", "single_none", "single_code", "none"
]
_Corner = tuple[float, float]
_MESSAGE: Final = "options 解释失败。 {name} 当前值不合法： {value}"

LANGUAGE: Final = "ocr.language"
FILES: Final[Mapping[str, tuple[str, str]]] = {
    "models/config_chinese.txt": ("zh", "简体中文"),
    "models/config_en.txt": ("en", "English"),
    "models/config_chinese_cht(v2).txt": ("zh-hant", "繁體中文"),
    "models/config_japan.txt": ("ja", "日本語"),
    "models/config_korean.txt": ("ko", "한국어"),
    "models/config_cyrillic.txt": ("ru", "Русский"),
}
"""Language tag and title per value of ocr.language in Umi-OCR's plugins; many clients hard-code the values."""

_LANGUAGES: Final = {
    **{value: tag for value, (tag, _) in FILES.items()},
    **{title: tag for tag, title in FILES.values()},
    "models/config_chinese_cht.txt": "zh-hant",
}

_DESCRIPTIONS: Final[Mapping[str, Any]] = orjson.loads(files(__package__).joinpath("options.json").read_bytes())
OPTIONS: Final[Mapping[str, Any]] = _DESCRIPTIONS["image"]
"""The response of GET /api/ocr/get_options without a model repository."""
DOCUMENT_OPTIONS: Final[Mapping[str, Any]] = _DESCRIPTIONS["document"]
"""The options for documents only, which GET /api/doc/get_options adds to those for images."""
OK, NO_TEXT = 100, 101
NOT_JSON, EMPTY, NO_BASE64, NO_DICT, BAD_OPTION = 800, 801, 802, 803, 804
ENGINE_FAILED, REFUSED = 902, 903
CODES: Final[tuple[tuple[type[OcrsvcError], int], ...]] = (
    (NothingSent, NO_BASE64),
    (BadOption, BAD_OPTION),
    (UnknownModel, BAD_OPTION),
    (BadBase64, 300),
    (UnsupportedImage, 301),
    (BrokenImage, 301),
)
"""Umi-OCR's code per error class; 300 and 301 are codes of its engine."""
UNREADABLE_IMAGES: Final = (300, 301)


class ImageOptions(RequestValues):
    """The options of an image; `words` is an extension that options.json does not list."""

    message: ClassVar[str] = _MESSAGE
    language: Annotated[Any, Field(alias=LANGUAGE)] = None
    cls: Annotated[bool | None, Field(alias="ocr.cls")] = None
    max_side: Annotated[float | None, Field(alias="ocr.limit_side_len")] = None
    parser: Annotated[_Parser | None, Field(alias="tbpu.parser")] = None
    ignored: Annotated[tuple[tuple[_Corner, _Corner], ...], Field(alias="tbpu.ignoreArea")] = ()
    form: Annotated[Literal["dict", "text"], Field(alias="data.format")] = "dict"
    words: Annotated[bool, Field(alias="data.words")] = False

    def read_options(self, *, has_models: bool) -> ReadOptions:
        """The reading options; the language is ignored without a model repository. Raises BadOption."""
        side = clamp_side_px(self.max_side) if self.max_side is not None else None
        read = ReadOptions(rotate=rotate_option(self.cls), max_side=side, words=self.words)
        return _with_language(read, self.language) if has_models and self.language is not None else read


class DocumentOptions(ImageOptions):
    """The options of a document, stored with its job under their aliases."""

    ignored_first: Annotated[int, Field(alias="tbpu.ignoreRangeStart")] = 1
    ignored_last: Annotated[int, Field(alias="tbpu.ignoreRangeEnd")] = -1
    first: Annotated[int, Field(alias="pageRangeStart")] = 1
    last: Annotated[int, Field(alias="pageRangeEnd")] = -1
    listed: Annotated[tuple[int, ...], Field(alias="pageList")] = ()
    # Accepted without effect: pages are always rendered.
    mode: Annotated[Literal["mixed", "fullPage", "imageOnly"], Field(alias="doc.extractionMode")] = "fullPage"


def _with_language(options: ReadOptions, language: object) -> ReadOptions:
    if isinstance(language, str) and language in _LANGUAGES:
        return replace(options, lang=_LANGUAGES[language])
    name, equals, value = language.partition("=") if isinstance(language, str) else ("", "", "")
    if not equals or name not in {"model", "tier", "lang"}:
        raise BadOption(_MESSAGE.format(name=LANGUAGE, value=shown(language)[:100]))
    choice = read_options([(name, value)]).read
    return replace(options, model=choice.model, tier=choice.tier, lang=choice.lang)


def language_choices(listed: ModelList) -> list[tuple[str, str]]:
    """Choices of ocr.language as (value, title): languages, by Umi-OCR's value if it knows them, then models."""
    choices = [(value, title) for value, (tag, title) in FILES.items() if tag in listed.languages]
    known = {tag for tag, _ in FILES.values()}
    choices += [(f"lang={tag}", tag) for tag in listed.languages if tag not in known]
    for one in listed.versions:
        if one.version in listed.available:
            title = one.version.description.title
            names = (one.name, *(f"{one.name}:{label}" for label in one.labels))
            choices += [(f"model={name}", f"{title} ({name})" if title else name) for name in names]
    return list(dict(choices).items())


def options_for(listed: ModelList) -> Mapping[str, object]:
    """The response of GET /api/ocr/get_options with a model repository."""
    choices = language_choices(listed)
    language = {"default": choices[0][0], "optionsList": list(map(list, choices))} if choices else {}
    return {**OPTIONS, LANGUAGE: {**OPTIONS[LANGUAGE], **language}}


def checked_members(*needed: str, missing: str, may_be_empty: bool = False) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The members and the options of this thread's request. Raises CodedError with Umi-OCR's messages."""
    content, members = request.content, request.content.members
    if content.raw is None and not (content.fields if may_be_empty else members):
        raise CodedError(EMPTY, "请求为空。")
    if not any(name in members for name in needed):
        raise CodedError(NO_BASE64, missing)
    options = members.get("options")
    if options is not None and not isinstance(options, dict):
        raise CodedError(NO_DICT, "请求中 options 字段必须为字典。")
    return members, options or {}


def to_answer(page: Page, options: ImageOptions, spent_s: float) -> dict[str, object]:
    """The lines in Umi-OCR's format, or its code for no text."""
    lines = _outside(page.lines, options.ignored)
    if not lines:
        return {"code": NO_TEXT, "data": ""}
    ends = to_ends(lines, options.parser or "")
    items = [
        {**item, "end": end, **({} if line.words is None else {"words": _items(line.words)})}
        for line, item, end in zip(lines, _items(lines), ends, strict=True)
    ]
    data: object = items
    if options.form == "text":
        data = "".join(line.text + end for line, end in zip(lines, ends, strict=True))
    score = sum(item["score"] for item in items) / len(items)
    return {"code": OK, "data": data, "score": score, "time": round(spent_s, 4), "timestamp": time.time()}


def _items(texts: Sequence[Line | Word]) -> list[dict[str, Any]]:
    placed = texts_with_corners(texts, score_digits=4)
    return [{"text": text, "score": score, "box": box} for text, score, box in placed]


def to_ends(lines: Sequence[Line], parser: str) -> list[str]:
    """The separator after each line: a line break; with a `…_none` parser a space between ASCII characters, else ""."""
    if not parser.endswith("_none"):
        return ["\n"] * (len(lines) - 1) + [""]
    meets = [one.text[-1:] + other.text[:1] for one, other in pairwise(lines)]
    return [" " if meet.isascii() and not any(map(str.isspace, meet)) else "" for meet in meets] + [""]


def _outside(lines: Sequence[Line], areas: Sequence[object]) -> Sequence[Line]:
    """The lines without those that lie fully inside one of the areas."""
    if not areas or not lines:
        return lines
    x1, y1, x2, y2 = np.array(areas, np.float64).reshape(-1, 4).T
    frames = to_frames(to_boxes(lines).round(1)).tolist()
    return [
        line
        for line, (left, top, right, bottom) in zip(lines, frames, strict=True)
        if not ((x1 <= left) & (y1 <= top) & (right <= x2) & (bottom <= y2)).any()
    ]
