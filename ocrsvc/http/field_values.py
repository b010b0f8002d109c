"""Values of fields and headers: as text, truth, number, and in short for messages."""

from __future__ import annotations

import math
import re
import reprlib
from typing import Final

import orjson

from ocrsvc.errors import BadOption

MAX_TEXT: Final = 1 << 20
"""Most characters of a field that is no image: a number, a word, a list of pages."""

_DECIMAL: Final = re.compile(r"(?:[0-9]{1,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")
# To JSON 640.0 is as whole as 640; beyond this a float is no exact number of anything.
_EXACT: Final = 2**53
_TRUE: Final = frozenset({"true", "1", "yes", "on", "t", "y"})
_FALSE: Final = frozenset({"false", "0", "no", "off", "f", "n"})


def as_text(value: object) -> str:
    """A field's value as text: numbers as in JSON, whole ones without a point; lists in short. Raises BadOption."""
    if isinstance(value, str | bytes):
        if len(value) > MAX_TEXT:
            raise BadOption(f"A field that is no image has more than {MAX_TEXT} letters.", "Send a shorter text.")
        return value if isinstance(value, str) else value.decode("utf-8", "replace")
    if isinstance(value, list | dict):
        # No option is one: this is for the message that says so.
        return shown(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return orjson.dumps(value).decode()


def shown(value: object) -> str:
    """A value for a message: a text itself, anything else in short, however large it is."""
    return value if isinstance(value, str) else reprlib.repr(value)


def parse_flag(text: str) -> bool:
    """A truth value in any of the words that pydantic takes. Raises ValueError."""
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE


def parse_decimal(text: str) -> float:
    """A number such as 5, 0.25, .5 or 1.0E-5. Raises ValueError, also for what Python writes otherwise: 1_0, inf."""
    if not _DECIMAL.fullmatch(text) or math.isinf(value := float(text)):
        raise ValueError(text)
    return value
