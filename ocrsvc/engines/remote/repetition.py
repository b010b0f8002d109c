"""Detects a model that repeats the end of its text endlessly."""

from typing import Final

# Shorter repetition is legitimate: in HTML, a blank form of 40 rows and 8 columns repeats for 3,240 characters.
MIN_CHARS: Final = 4000
MIN_TIMES: Final = 4
# The length of the repeated passage is the distance between the last two occurrences of the last 32 characters.
_PROBE_CHARS: Final = 32
_CHECK_EVERY_CHARS: Final = 512


class RepetitionDetector:
    """Finds out, in linear time, whether a growing text ends with the same passage at least four times in a row."""

    def __init__(self) -> None:
        self._tail = self._added = ""

    def is_repeating(self, added: str) -> bool:
        """Add text; return whether the text now ends with a repeated passage, which is checked every 512 characters."""
        self._added += added
        if len(self._added) < _CHECK_EVERY_CHARS:
            return False
        text = self._tail = (self._tail + self._added)[-MIN_TIMES * MIN_CHARS :]
        self._added = ""
        before = text.rfind(text[-_PROBE_CHARS:], 0, len(text) - 1)
        period = len(text) - _PROBE_CHARS - before
        length = max(MIN_CHARS, MIN_TIMES * period)
        return before >= 0 and length <= len(text) and text[-length:-period] == text[-length + period :]
