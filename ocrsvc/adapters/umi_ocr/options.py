"""Umi-OCR's options: what they ask for, and how they are described to its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ocrsvc.adapters.request_values import RequestValues, parse_values
from ocrsvc.errors import BadOption
from ocrsvc.http.field_values import shown
from ocrsvc.http.options import read_options
from ocrsvc.http.responses import clamp_side_px, rotate_option
from ocrsvc.models.model_control import ModelList
from ocrsvc.records import ReadOptions

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
"""The languages that the original's plugins have, many of them hard-wired in clients: their tags and titles."""

_LANGUAGES: Final = {
    **{value: tag for value, (tag, _) in FILES.items()},
    **{title: tag for tag, title in FILES.values()},
    "models/config_chinese_cht.txt": "zh-hant",
}


class ImageOptions(RequestValues):
    """The options of an image; the original has no `words`, and so it is not among those that are listed."""

    language: Annotated[Any, Field(alias=LANGUAGE)] = None
    cls: Annotated[bool | None, Field(alias="ocr.cls")] = None
    max_side: Annotated[float | None, Field(alias="ocr.limit_side_len")] = None
    parser: Annotated[_Parser | None, Field(alias="tbpu.parser")] = None
    ignored: Annotated[tuple[tuple[_Corner, _Corner], ...], Field(alias="tbpu.ignoreArea")] = ()
    form: Annotated[Literal["dict", "text"], Field(alias="data.format")] = "dict"
    words: Annotated[bool, Field(alias="data.words")] = False

    def read_options(self, *, has_models: bool) -> ReadOptions:
        """What is asked of the reader; a language only where there is a model repository. Raises BadOption."""
        side = clamp_side_px(self.max_side) if self.max_side is not None else None
        read = ReadOptions(rotate=rotate_option(self.cls), max_side=side, words=self.words)
        return _with_language(read, self.language) if has_models and self.language is not None else read


class DocumentOptions(ImageOptions):
    """The options of a document; kept with a task under the names that were sent."""

    ignored_first: Annotated[int, Field(alias="tbpu.ignoreRangeStart")] = 1
    ignored_last: Annotated[int, Field(alias="tbpu.ignoreRangeEnd")] = -1
    first: Annotated[int, Field(alias="pageRangeStart")] = 1
    last: Annotated[int, Field(alias="pageRangeEnd")] = -1
    listed: Annotated[tuple[int, ...], Field(alias="pageList")] = ()
    # Pages are read as they look.
    mode: Annotated[Literal["mixed", "fullPage", "imageOnly"], Field(alias="doc.extractionMode")] = "fullPage"


def parse_image_options(sent: Mapping[str, object]) -> ImageOptions:
    """The checked options of an image. Raises BadOption, with the original's words."""
    return parse_values(ImageOptions, sent, _MESSAGE)


def parse_document_options(sent: Mapping[str, object]) -> DocumentOptions:
    """The checked options of a document. Raises BadOption, with the original's words."""
    return parse_values(DocumentOptions, sent, _MESSAGE)


def _with_language(options: ReadOptions, sent: object) -> ReadOptions:
    if isinstance(sent, str) and sent in _LANGUAGES:
        return replace(options, lang=_LANGUAGES[sent])
    name, sign, value = sent.partition("=") if isinstance(sent, str) else ("", "", "")
    if not sign or name not in {"model", "tier", "lang"}:
        raise BadOption(_MESSAGE.format(name=LANGUAGE, value=shown(sent)[:100]))
    asked = read_options([(name, value)]).read
    return replace(options, model=asked.model, tier=asked.tier, lang=asked.lang)


def language_choices(listed: ModelList) -> list[tuple[str, str]]:
    """The values with their titles: languages that are read, by the original's values where it has any; then models."""
    found = [(value, title) for value, (tag, title) in FILES.items() if tag in listed.languages]
    known = {tag for tag, _ in FILES.values()}
    found += [(f"lang={tag}", tag) for tag in listed.languages if tag not in known]
    for one in listed.versions:
        if one.version in listed.available:
            title = one.version.description.title
            names = (one.name, *(f"{one.name}:{label}" for label in one.labels))
            found += [(f"model={name}", f"{title} ({name})" if title else name) for name in names]
    return list(dict(found).items())


def options_for(listed: ModelList) -> Mapping[str, object]:
    """What GET /api/ocr/get_options answers where there is a model repository."""
    choices = language_choices(listed)
    return {**OPTIONS, LANGUAGE: _choice("语言/模型库", choices)} if choices else OPTIONS


def _described(kind: str, title: str, default: object, hint: str = "", **more: object) -> dict[str, object]:
    """One option as the original describes it to its clients."""
    more = {"toolTip": hint, **more} if hint else more
    return {"title": title, "type": kind, "default": default, "advanced": False, **more}


def _choice(title: str, choices: Sequence[tuple[object, str]], hint: str = "") -> dict[str, object]:
    """An option with a value out of several, the first by default."""
    described = _described("enum", title, choices[0][0], optionsList=[list(each) for each in choices])
    return {**described, "toolTip": hint} if hint else described


def _number(title: str, hint: str, default: int) -> dict[str, object]:
    return _described("number", title, default, hint, isInt=True)


OPTIONS: Final[Mapping[str, object]] = {
    LANGUAGE: _choice("语言/模型库", [(value, title) for value, (_, title) in list(FILES.items())[:2]]),
    "ocr.cls": _described("boolean", "纠正文本方向", True, "识别方向不是正朝上的图片。关闭后按原样识别。"),
    "ocr.limit_side_len": _choice(
        "限制图像边长", [(side, str(side)) for side in (960, 2880, 4320, 999999)], "识别前将长边缩小到此像素值。"
    ),
    "tbpu.parser": _choice("排版解析方案", tuple(PARSERS.items()), "按什么方式，解析和排序图片中的文字块"),
    "tbpu.ignoreArea": _described("var", "忽略区域", [], "数组，每一项为[[左上角x,y],[右下角x,y]]。"),
    "data.format": _choice(
        "数据返回格式",
        (("dict", "含有位置等信息的原始字典"), ("text", "纯文本")),
        '返回值字典中，["data"] 按什么格式表示OCR结果数据',
    ),
}
"""What GET /api/ocr/get_options answers without a model repository."""

DOCUMENT_OPTIONS: Final[Mapping[str, object]] = {
    "tbpu.ignoreRangeStart": _number("忽略区域起始", "忽略区域生效的页数范围起始。从1开始。", 1),
    "tbpu.ignoreRangeEnd": _number("忽略区域结束", "忽略区域生效的页数范围结束。可以用负数表示倒数第X页。", -1),
    "pageRangeStart": _number("OCR页数起始", "OCR的页数范围起始。从1开始。", 1),
    "pageRangeEnd": _number("OCR页数结束", "OCR的页数范围结束。可以用负数表示倒数第X页。", -1),
    "pageList": _described(
        "var", "OCR页数列表", [], "数组，可指定单个或多个页数。例：[1,2,5]。与页数范围同时填写时优先。"
    ),
    "doc.extractionMode": _choice("内容提取模式", [("fullPage", "整页强制OCR")]),
}
"""What GET /api/doc/get_options adds to the options of an image."""
