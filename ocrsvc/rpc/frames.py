"""Where does each HTTP/2 frame end that comes on a connection?

h2 refuses whatever is in one piece with a goodbye, and behind it; and who gives it one frame at a time can stop between
two of them.
"""

from __future__ import annotations

from typing import Final

_PREFACE_BYTES: Final = 24
_HEAD_BYTES: Final = 9


class Frames:
    """Cuts what arrives where frames end. What is not HTTP/2 is cut somewhere."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._left_bytes = _PREFACE_BYTES

    @property
    def waiting(self) -> bool:
        """Whether `cut` has more to give."""
        held_bytes = len(self._data) - self._at
        return held_bytes > 0 and (self._left_bytes > 0 or held_bytes >= _HEAD_BYTES)

    def feed(self, data: bytes) -> None:
        """What came."""
        self._data, self._at = self._data[self._at :] + data, 0

    def cut(self) -> bytes:
        """The next frame, or as much of it as is there; nothing if that is less than its head."""
        if not self.waiting:
            return b""
        if not self._left_bytes:
            self._left_bytes = _HEAD_BYTES + int.from_bytes(self._data[self._at : self._at + 3])
        piece = self._data[self._at : self._at + self._left_bytes]
        self._at += len(piece)
        self._left_bytes -= len(piece)
        return piece
