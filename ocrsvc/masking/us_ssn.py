"""Social security numbers of the United States: three digits, two and four; no check digit, but numbers never given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_SHAPED: Final = re.compile(
    r"(?<![0-9A-Za-z])(?<![0-9][\-.,])([0-9]{3})([ \-])([0-9]{2})\2([0-9]{4})(?![0-9A-Za-z]|-[0-9])"
)
# Without dashes it is any number of nine digits: so only after its name.
_NAMED: Final = re.compile(
    r"(?:SSN|social security)[^0-9\n]{0,24}"
    r"(?P<number>(?P<area>[0-9]{3})[ \-]{0,2}(?P<group>[0-9]{2})[ \-]{0,2}(?P<serial>[0-9]{4}))(?![0-9])",
    re.IGNORECASE,
)
# Printed in advertisements, so that thousands have written them into forms.
_ADVERTISED: Final = frozenset({("078", "05", "1120"), ("219", "09", "9999")})


def find_ssns(text: str) -> Iterator[tuple[int, int]]:
    """Where such numbers stand.

    Args:
        text: In half width.
    """
    for match in _SHAPED.finditer(text):
        if is_ssn(match[1], match[3], match[4]):
            yield match.span()
    for match in _NAMED.finditer(text):
        if is_ssn(match["area"], match["group"], match["serial"]):
            yield match.span("number")


def is_ssn(area: str, group: str, serial: str) -> bool:
    """Whether it can have been given to somebody."""
    if area in {"000", "666"} or area >= "900" or group == "00" or serial == "0000":
        return False
    return (area, group, serial) not in _ADVERTISED
