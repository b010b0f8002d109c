"""Page images in responses: a page with its lines framed, drawn in time and within the request's memory."""

from __future__ import annotations

import pybase64

from ocrsvc.formats.drawing import draw_page, drawing_bytes
from ocrsvc.records import Check, Image, Page
from ocrsvc.serving.memory_budget import Share


def drawn_page(image: Image, page: Page, held: Share, check: Check, prefix: bytes = b"") -> bytes:
    """The image with a frame around each line: a JPEG in base64, as a JSON string.

    Args:
        image: What the page was read from; drawn on.
        page: Its lines.
        held: An account that lasts until the answer is made; what it takes is for the text and for its copy there.
        check: Called before each line.
        prefix: What stands before the base64.

    Raises:
        QueueFull, BodyTooLarge: There is no memory for it.
    """
    with held.holding(drawing_bytes(image.pixels, page)):
        jpeg = draw_page(image.pixels, page, check)
        held.take(2 * base64_bytes(len(jpeg)))
        return b"".join((b'"', prefix, pybase64.b64encode(jpeg), b'"'))


def base64_bytes(size_bytes: int) -> int:
    """How long so many bytes are as text."""
    return 4 * -(-size_bytes // 3)
