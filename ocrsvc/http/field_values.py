"""Conversion of field and header values to text, flags and numbers, and to short text for messages."""

import math
import re
import reprlib
from typing import Final

import orjson

from ocrsvc.errors import BadOption

# Largest number of characters in a field's text; images in base64 may be longer.
MAX_TEXT: Final = 1 << 20
_DECIMAL: Final = re.compile(r"(?:[0-9]{1,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")
# JSON has one number type, so 640.0 means 640; above 2**53 floats do not represent every integer.
_EXACT: Final = 2**53
_TRUE: Final = frozenset({"true", "1", "yes", "on", "t", "y"})
_FALSE: Final = frozenset({"false", "0", "no", "off", "f", "n"})


def as_text(value: object) -> str:
    """A field's value as text: numbers as in JSON but without ".0", lists shortened. Raises BadOption if too long."""
    if isinstance(value, str | bytes):
        if len(value) > MAX_TEXT:
            raise BadOption(f"A field has more than {MAX_TEXT} characters.", "Send a shorter text.")
        return value if isinstance(value, str) else value.decode("utf-8", "replace")
    if isinstance(value, list | dict):
        # No option accepts a list, so this text appears only in error messages and may be shortened.
        return shown(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return orjson.dumps(value).decode()


def shown(value: object) -> str:
    """A value as text for a message: text unchanged, anything else as its shortened `repr`."""
    return value if isinstance(value, str) else reprlib.repr(value)


def parse_flag(text: str) -> bool:
    """Parse a boolean, in any spelling that pydantic accepts. Raises ValueError."""
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE


def parse_decimal(text: str) -> float:
    """Parse a number such as 5, 0.25, .5 or 1.0E-5. Raises ValueError, also for forms such as 1_0 and inf."""
    if not _DECIMAL.fullmatch(text) or math.isinf(value := float(text)):
        raise ValueError(text)
    return value
