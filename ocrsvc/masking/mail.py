"""Addresses of electronic mail, with the single spaces that recognizers put around their marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_MOST_LOCAL: Final = 64
_MOST_DOMAIN: Final = 255

_LOCAL: Final = re.compile(r"[A-Za-z0-9._%+\-']{1,64}[ ]?\Z")
_LABEL: Final = r"[A-Za-z0-9][A-Za-z0-9\-]{0,62}"
_DOMAIN: Final = re.compile(rf"[ ]?(?:{_LABEL}[.]){{1,8}}[A-Za-z]{{2,24}}(?![A-Za-z0-9\-])")
# A space beside the last point, or another mark that was read for it.
_MISREAD: Final = re.compile(
    rf"[ ]?{_LABEL}[ ]?[.,\u3002\u00b7][ ]?(?:com|cn|net|org|edu|gov)(?:[.](?:cn|hk|tw|uk))?(?![A-Za-z0-9\-])"
)


def find_mails(text: str) -> Iterator[tuple[int, int]]:
    """Where such addresses stand, in ASCII.

    Args:
        text: In half width.
    """
    at = text.find("@")
    while at >= 0:
        local = _LOCAL.search(text, max(0, at - _MOST_LOCAL), at)
        window = (at + 1, min(len(text), at + 1 + _MOST_DOMAIN))
        domain = _DOMAIN.match(text, *window) or _MISREAD.match(text, *window)
        if local and domain:
            yield local.start(), domain.end()
        at = text.find("@", at + 1)
