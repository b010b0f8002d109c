"""National insurance numbers of the United Kingdom: two letters, six digits and one letter; no check digit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# HMRC's manual NIM39110: letters that are never used, and pairs that are not given.
_NUMBER: Final = re.compile(
    r"(?<![0-9A-Za-z])(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]"
    r"[ \-]?[0-9]{2}[ \-]?[0-9]{2}[ \-]?[0-9]{2}[ \-]?[A-D](?![0-9A-Za-z])"
)


def find_ninos(text: str) -> Iterator[tuple[int, int]]:
    """Where such numbers stand, in capitals.

    Args:
        text: In half width.
    """
    return (match.span() for match in _NUMBER.finditer(text))
