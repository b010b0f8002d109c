"""Text of others for a terminal: signs of control are written out, so that no name of a file can command it."""

from __future__ import annotations

import re
from typing import Final

# C0 but for tab and line feed, DEL, C1, and what turns the direction of the text around it.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with signs of control as `\x1b` and the like."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
