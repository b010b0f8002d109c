"""The pages to send, and the text that must be read on each.

The expected text never comes from an answer: it is the drawn text, or for the engine fake the size and the checksum of
the pixels, decoded here. Independent of HTTP and locust.
"""

from __future__ import annotations

import difflib
import io
import unicodedata
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

PAGES = Path(__file__).resolve().parents[1] / "tests" / "pages"
WIDTH, HEIGHT = 640, 300
HUGE_SCALE = 6

# Minimum similarity to the true text, by engine: Tr's recognizers make more mistakes than PP-OCR's.
MIN_SIMILARITY = {"ppocr": 0.9}
MIN_OTHER_SIMILARITY = 0.6


@dataclass(frozen=True, slots=True)
class KnownPage:
    """An image file and its text.

    Attributes:
        name: For messages.
        data: The bytes of the file.
        media_type: Such as image/png.
        text: The drawn lines, joined by newlines.
        key: A word that is only on this page, so that another page's answer is detected.
    """

    name: str
    data: bytes
    media_type: str
    text: str
    key: str


def notices() -> list[KnownPage]:
    """The tests' pages of 640 x 300 pixels: Chinese and English, as PNG and JPEG."""
    text = (PAGES / "notice.txt").read_text("utf-8").strip()
    return [
        KnownPage("notice.png", (PAGES / "notice.png").read_bytes(), "image/png", text, "2026-1121"),
        KnownPage("notice.jpg", (PAGES / "notice.jpg").read_bytes(), "image/jpeg", text, "2026-1121"),
    ]


def line() -> KnownPage:
    """One line of the notice as a page."""
    text = (PAGES / "notice.txt").read_text("utf-8").splitlines()[2]
    return KnownPage("line.png", (PAGES / "line.png").read_bytes(), "image/png", text, "15:00")


def drawn(number: int, scale: int = 1) -> KnownPage:
    """A gray PNG of 640 x 300 pixels, times `scale`, with three lines, one of them with the number (below 1000)."""
    key = str(104_729 * (number + 1) % 900_000 + 100_000)
    lines = (f"Invoice {key}", "Thank you for reading this page.", f"Total {key[:3]} euro, paid")
    page = Image.new("L", (WIDTH * scale, HEIGHT * scale), "white")
    pen = ImageDraw.Draw(page)
    for row, text in enumerate(lines):
        pen.text((32 * scale, (30 + 85 * row) * scale), text, "black", ImageFont.load_default(34.0 * scale))
    file = io.BytesIO()
    page.save(file, "PNG")
    return KnownPage(f"drawn {number} x{scale}", file.getvalue(), "image/png", "\n".join(lines), key)


def huge() -> KnownPage:
    """A page of 7 million pixels with large letters."""
    return drawn(1, HUGE_SCALE)


def wrong_text(page: KnownPage, engine: str, text: str) -> str:
    """What is wrong with the text read on a page, or "".

    Args:
        page: The page that was sent.
        engine: Name of the service's engine, from /version.
        text: The lines of the answer, joined by newlines.
    """
    if engine == "fake":
        expected = fake_text(page.data)
        return "" if text == expected else f"{page.name}: read {text!r}, expected {expected!r}"
    truth, read = _plain(page.text), _plain(text)
    similarity = difflib.SequenceMatcher(None, truth, read, autojunk=False).ratio()
    if similarity < MIN_SIMILARITY.get(engine, MIN_OTHER_SIMILARITY):
        return f"{page.name}: read {text!r}, similarity to the true text {similarity:.2f}"
    if engine == "ppocr" and _plain(page.key) not in read:
        return f"{page.name}: read {text!r}, without {page.key!r}"
    return ""


@cache
def fake_text(data: bytes) -> str:
    """The engine fake's text: the size, and the CRC-32 of the pixels as OpenCV decodes them."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert pixels is not None, "not an image"
    return f"{pixels.shape[1]}x{pixels.shape[0]}\n{zlib.crc32(pixels.tobytes()):08x}"


def _plain(text: str) -> str:
    """The text without white space, in lower case, with full-width forms normalised."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())
