"""Detects a model that repeats the end of its text endlessly."""

from typing import Final

# A blank form of 40 rows and 8 columns has 3,240 equal characters in HTML, and is not endless.
MIN_CHARS: Final = 4000
MIN_TIMES: Final = 4
# Characters to look back for the beginning of the period.
_PROBE_CHARS: Final = 32
CHECK_EVERY_CHARS: Final = 512


class RepetitionDetector:
    """Watches a growing text for a period that repeats at its end: 4,000 characters, and at least four times."""

    def __init__(self) -> None:
        self._tail = ""
        self._added: list[str] = []
        self._added_chars = 0

    def is_repeating(self, added: str) -> bool:
        """Add text; return whether the end repeats, which is checked every 512 characters, in linear time in all."""
        self._added.append(added)
        self._added_chars += len(added)
        if self._added_chars < CHECK_EVERY_CHARS:
            return False
        self._tail = "".join([self._tail, *self._added])[-MIN_TIMES * MIN_CHARS :]
        self._added, self._added_chars = [], 0
        return _has_period(self._tail)


def _has_period(text: str) -> bool:
    """Whether the last characters repeat with the distance to the previous occurrence of the very last ones."""
    before = text.rfind(text[-_PROBE_CHARS:], 0, len(text) - 1)
    if before < 0:
        return False
    period = len(text) - _PROBE_CHARS - before
    length = max(MIN_CHARS, MIN_TIMES * period)
    return length <= len(text) and text[-length:-period] == text[-length + period :]
