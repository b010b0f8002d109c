"""Escapes any text for XML, so that a parser gives it back as it was."""

from __future__ import annotations

import re
from typing import Final

# XML 1.0 has no way to write the others, not even as references.
_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"
# Blanks other than the space are references, because a parser makes spaces of them in an attribute.
_REFERENCES: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
)


def to_markup(text: str) -> str:
    """The text for an element or an attribute; what XML cannot hold becomes U+FFFD."""
    return _NOT_IN_XML.sub(_UNKNOWN, text).translate(_REFERENCES)
