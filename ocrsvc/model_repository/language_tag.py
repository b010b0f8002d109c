"""Languages as models name them, and what else people call them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

AUTO: Final = "auto"
"""No language: the engine chooses a recognizer by line."""

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
