"""What the answers of several formats have alike: lines and words as columns, and files that are made in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ocrsvc.formats.boxes import Boxed, to_boxes, to_scores, whole
from ocrsvc.serving.memory_budget import Share


def placed_texts(
    texts: Sequence[Boxed], box_digits: int | None = None, score_digits: int = 5, scale: float = 1.0
) -> Iterator[tuple[str, float, list[list[Any]]]]:
    """Text, confidence and corners of each line or word; corners in whole pixels without `box_digits`."""
    boxes = to_boxes(texts) * scale
    corners = whole(boxes) if box_digits is None else boxes.round(box_digits)
    return zip([text.text for text in texts], to_scores(texts, score_digits), corners.tolist(), strict=True)


class HeldOutput:
    """An output in memory, which an account pays for before it is taken: for its pieces, and for the whole."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._pieces: list[bytes] = []

    def write(self, data: bytes | memoryview, /) -> None:
        """Take all of the bytes. Raises QueueFull, BodyTooLarge."""
        self._share.take(2 * len(data))
        self._pieces.append(bytes(data))

    def taken(self) -> bytes:
        """All that was written; the account is free of it, for whoever sends it takes it again."""
        whole_file = b"".join(self._pieces)
        self._share.give_back(2 * len(whole_file))
        self._pieces.clear()
        return whole_file
