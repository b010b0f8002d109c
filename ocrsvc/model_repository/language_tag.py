"""Languages as models name them, what else people call them, and which models or recognizers have one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

AUTO: Final = "auto"
"""The `lang` of a request that leaves the choice to the engine, line by line."""

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
"""Tags of the two Chinese scripts, which others write by region; what PaddleOCR calls its languages; Norwegian."""


def is_tag(text: str) -> bool:
    """Whether a text is a language tag in small letters, such as zh, zh-hant or en."""
    return _TAG.fullmatch(text) is not None


def parse_language(text: str) -> str:
    """The tag that a request means, in small letters, or AUTO. Raises ValueError.

    Capitals and `_` for `-` are taken, regions for the Chinese scripts, and PaddleOCR's names.
    """
    tag = text.lower().replace("_", "-")
    tag = _SAME.get(tag, tag)
    if tag != AUTO and not is_tag(tag):
        raise ValueError(text)
    return tag


def with_language(lang: str, of_each: Sequence[Collection[str]]) -> tuple[int, ...]:
    """Which of several recognizers or models have a language.

    Args:
        lang: A tag as `parse_language` gives it, but not AUTO.
        of_each: The tags of each.

    Returns:
        Their places, ascending: of those that name the tag; where there are none, of those that name what stands before
        its first dash, such as pt for pt-br.
    """
    for tag in (lang, lang.partition("-")[0]):
        found = tuple(place for place, tags in enumerate(of_each) if tag in tags)
        if found:
            return found
    return ()
