"""Language tags: how models name languages, what else people call them, and which recognizers have one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

AUTO: Final = "auto"  # the `lang` of a request that leaves the choice to the engine, line by line
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
"""The two Chinese scripts, which others write by region; PaddleOCR's names of languages; Norwegian."""


def is_tag(text: str) -> bool:
    """Whether a text is a language tag in small letters, such as zh, zh-hant or en."""
    return _TAG.fullmatch(text) is not None


def parse_language(text: str) -> str:
    """The tag that a request means, in small letters, or AUTO; takes capitals, `_` and what _SAME lists.

    Raises ValueError.
    """
    tag = text.lower().replace("_", "-")
    tag = _SAME.get(tag, tag)
    if tag != AUTO and not is_tag(tag):
        raise ValueError(text)
    return tag


def with_language(lang: str, of_each: Sequence[Collection[str]]) -> tuple[int, ...]:
    """Places of the recognizers or models that have a language; where none has, of what stands before its first dash.

    `lang` is a tag as `parse_language` gives it, but not AUTO; pt-br falls back to pt.
    """
    for tag in (lang, lang.partition("-")[0]):
        if found := tuple(place for place, tags in enumerate(of_each) if tag in tags):
            return found
    return ()
