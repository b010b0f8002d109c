"""Escapes any text for XML, so that a parser gives it back as it was."""

from __future__ import annotations

import re
from typing import Final

# Marks, and what XML 1.0 cannot write as itself or, for most of it, at all.
_SPECIAL: Final = re.compile("[&<>\"']|[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"
# Blanks other than the space are references, because a parser makes spaces of them in an attribute.
_REFERENCES: Final = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "'": "&#39;",
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}


def to_markup(text: str) -> str:
    """The text for an element or an attribute; what XML cannot hold becomes U+FFFD."""
    return _SPECIAL.sub(lambda found: _REFERENCES.get(found[0], _UNKNOWN), text)
