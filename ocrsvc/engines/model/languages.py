"""Language tags: the form that models use, aliases that requests may use, and lookup by tag."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

AUTO: Final = "auto"  # the engine chooses the language of each line
PATTERN: Final = r"[a-z]{2,3}(?:-[a-z0-9]{2,8}){0,2}"
ACCEPTED: Final = "a language, such as zh, zh-hant, en or ja, or auto"

_TAG: Final = re.compile(PATTERN)
_SAME: Final[Mapping[str, str]] = {
    **dict.fromkeys(("zh-hans", "zh-cn", "zh-sg", "zh-hans-cn", "zh-hans-sg"), "zh"),
    **dict.fromkeys(("zh-tw", "zh-hk", "zh-mo", "zh-hant-tw", "zh-hant-hk", "zh-hant-mo"), "zh-hant"),
    "ch": "zh",
    "chinese-cht": "zh-hant",
    "japan": "ja",
    "korean": "ko",
    "german": "de",
    "french": "fr",
    "no": "nb",
}
"""Aliases: Chinese scripts by region, PaddleOCR's language names, Norwegian."""


def is_tag(text: str) -> bool:
    """Whether a text is a lower-case language tag such as zh, zh-hant or en."""
    return _TAG.fullmatch(text) is not None


def parse_language(text: str) -> str:
    """A request's language as a lower-case tag or AUTO; accepts capitals, `_` and the aliases. Raises ValueError."""
    tag = text.lower().replace("_", "-")
    tag = _SAME.get(tag, tag)
    if tag != AUTO and not is_tag(tag):
        raise ValueError(text)
    return tag


def with_language(lang: str, of_each: Sequence[Collection[str]]) -> tuple[int, ...]:
    """Indices of the recognizers or models that have a language; if none has, pt-br falls back to pt.

    `lang` is a tag from `parse_language`, but not AUTO.
    """
    for tag in (lang, lang.partition("-")[0]):
        if matches := tuple(index for index, tags in enumerate(of_each) if tag in tags):
            return matches
    return ()
