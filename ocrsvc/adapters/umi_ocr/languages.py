"""Umi-OCR's `ocr.language` where there is a model repository: which values it has, and what they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ocrsvc.errors import BadOption
from ocrsvc.http.field_values import shown
from ocrsvc.http.options import read_options
from ocrsvc.models.model_control import ModelList
from ocrsvc.records import ReadOptions

NAME: Final = "ocr.language"

FILES: Final[Mapping[str, tuple[str, str]]] = {
    "models/config_chinese.txt": ("zh", "简体中文"),
    "models/config_en.txt": ("en", "English"),
    "models/config_chinese_cht(v2).txt": ("zh-hant", "繁體中文"),
    "models/config_japan.txt": ("ja", "日本語"),
    "models/config_korean.txt": ("ko", "한국어"),
    "models/config_cyrillic.txt": ("ru", "Русский"),
}
"""The values that the original's plugins have, many of them hard-wired in clients: their languages and titles."""

_LANGUAGES: Final = {
    **{value: tag for value, (tag, _) in FILES.items()},
    **{title: tag for tag, title in FILES.values()},
    "models/config_chinese_cht.txt": "zh-hant",
}
_OPTIONS: Final = ("model", "tier", "lang")


def language_choices(listed: ModelList) -> list[tuple[str, str]]:
    """The values with their titles: languages that are read, by the original's values where it has any; then models."""
    found = [(value, title) for value, (tag, title) in FILES.items() if tag in listed.languages]
    known = {tag for tag, _ in FILES.values()}
    found += [(f"lang={tag}", tag) for tag in listed.languages if tag not in known]
    for one in listed.versions:
        if one.version in listed.available:
            names = (one.name, *(f"{one.name}:{label}" for label in one.labels))
            found += [(f"model={name}", _title(name, one.version.description.title)) for name in names]
    return list(dict(found).items())


def with_language(options: ReadOptions, sent: object) -> ReadOptions:
    """The options with what a value asks for; without a value, as they are. Raises BadOption."""
    if sent is None:
        return options
    if isinstance(sent, str) and sent in _LANGUAGES:
        return replace(options, lang=_LANGUAGES[sent])
    name, sign, value = sent.partition("=") if isinstance(sent, str) else ("", "", "")
    if not sign or name not in _OPTIONS:
        raise BadOption(f"options 解释失败。 {NAME} 当前值不合法： {shown(sent)[:100]}")
    asked = read_options([(name, value)]).read
    return replace(options, model=asked.model, tier=asked.tier, lang=asked.lang)


def _title(name: str, title: str) -> str:
    return f"{title} ({name})" if title else name
