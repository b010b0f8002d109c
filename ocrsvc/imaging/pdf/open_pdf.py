"""Draws the pages of a PDF with pdfium, in a child process with limits of memory and of time per page.

A PDF can make pdfium crash, loop or exhaust memory, and pdfium is not thread-safe. If the child dies, the page counts
as damaged, and the next page gets a new child.
"""

import math
import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np

from ocrsvc.errors import BrokenImage, EncryptedDocument, ImageTooLarge, OcrsvcError
from ocrsvc.imaging.codecs.encoded_image import broken
from ocrsvc.imaging.pdf.characters import PageCharacters, PageFrame, page_characters
from ocrsvc.imaging.pdf.child_text import room_bytes
from ocrsvc.results import Check, Pixels
from ocrsvc.system.child_process import ChildFailed, ChildLate, ChildProcess, resources_exhausted
from ocrsvc.system.shared_memory import KEEPS_LENGTH, READ_ONLY, open_memory

POINTS_PER_INCH: Final = 72
MIN_DPI: Final = 72  # small text is illegible below; a page that exceeds the limits even at MIN_DPI is refused
PAGE_LIMIT_S: Final = 10.0  # time limit for opening a file and for each page; a scan of 50 megapixels takes 1 to 2 s
MAX_IMAGE_SCALE: Final = 1.5  # to bound the cost, a page that is one image has at most 1.5 times the usual dpi
_SAME_RESOLUTION: Final = 0.02  # horizontal and vertical resolutions of an image that differ by less count as equal
TEXT_LIMIT_S: Final = 5.0  # time limit for finding a page's characters; ten thousand take some milliseconds
MAX_CHARACTERS: Final = 50_000  # most characters of a page's text layer; the densest newspaper pages have 30,000
_MEMORY_BYTES: Final = 144 << 20  # memory limit of the child, without the canvas; 50 megapixels need less than half
CANVAS_BYTES_PER_PIXEL: Final = 4
_PROGRAM: Final = "ocrsvc.imaging.pdf.child"
_MAX_PAGES: Final = 1 << 21  # limits the page count that a file declares, which pdfium does not verify


@dataclass(frozen=True, slots=True)
class DrawingLimits:
    """The resolution of drawn pages, and the size limits of pages and of each image on them."""

    dpi: int
    max_pixels: int
    longest_side: int

    def largest_scale(self, width: float, height: float) -> float:
        """The largest scale at which a page of this size stays within the limits."""
        return min(math.sqrt(self.max_pixels / width / height), self.longest_side / max(width, height))


class Pdf:
    """An open PDF. Not thread-safe; needs a `close`. While the child works, `check` is called, which may raise.

    Methods raise BrokenImage for a page that is damaged, crashes the child or takes longer than PAGE_LIMIT_S, and
    ImageTooLarge and ResourcesExhausted; the constructor also raises EncryptedDocument.
    """

    def __init__(self, raw: bytes, limits: DrawingLimits, check: Check) -> None:
        self._limits = limits
        self._memory_bytes = _MEMORY_BYTES + len(raw)
        self._child: ChildProcess | None = None
        with ExitStack() as opened:
            with resources_exhausted():
                self._file = open_memory("pdf", raw, READ_ONLY)
                opened.callback(os.close, self._file)
                self._canvas = open_memory("page", seals=KEEPS_LENGTH)
                opened.callback(os.close, self._canvas)
            opened.callback(self._end)
            self.count = self._start(check)
            if self.count < 1:
                raise broken("PDF", "has no pages")
            self._opened = opened.pop_all()

    def measure(self, number: int, check: Check) -> tuple[int, int]:
        """Width and height in pixels at which page `number`, from 1, is drawn."""
        width, height = self._ask(f"size {number}", _page(number), check, "points", 2)
        return size_px(width, height, self._limits)

    def measure_image(self, number: int, check: Check) -> tuple[int, int] | None:
        """Width and height in pixels, at its image's resolution, of a page that is one image; None for other pages."""
        request = f"image {number} {self._limits.dpi} {self._limits.max_pixels}"
        across, down = self._ask(request, _page(number), check, "image", 2)
        if not (0 < across < math.inf and 0 < down < math.inf):
            return None
        width, height = self._ask(f"size {number}", _page(number), check, "points", 2)
        return image_size_px((width, height), (across, down), self._limits)

    def draw(
        self, number: int, size: tuple[int, int], check: Check, *, gray: bool = False, is_image: bool = False
    ) -> Pixels:
        """Draw a page on white: (H, W) if `gray`, else (H, W, 3) BGR; at the size of `measure_image` if `is_image`."""
        width, height = size
        size_bytes = width * height * CANVAS_BYTES_PER_PIXEL
        self._grow_canvas(size_bytes)
        request = f"draw {number} {width} {height} {self._limits.max_pixels} {int(is_image)}"
        self._ask(request, _page(number), check, "drawn", 0)
        with resources_exhausted(), mmap.mmap(self._canvas, size_bytes, access=mmap.ACCESS_READ) as canvas:
            pixels = np.frombuffer(canvas, np.uint8).reshape(height, width, CANVAS_BYTES_PER_PIXEL)
            drawn = cv2.cvtColor(pixels, cv2.COLOR_BGRA2GRAY if gray else cv2.COLOR_BGRA2BGR)
            del pixels
        return np.asarray(drawn, np.uint8)

    def count_characters(self, number: int, check: Check) -> int:
        """Load a page's text and count its characters. Raises BrokenImage beyond MAX_CHARACTERS or TEXT_LIMIT_S."""
        (answer,) = self._ask(f"text {number}", f"The text of page {number}", check, "characters", 1, TEXT_LIMIT_S)
        count = int(answer)
        if count > MAX_CHARACTERS:
            raise BrokenImage(
                f"Page {number} of this PDF has {count} characters; the limit of a text layer is {MAX_CHARACTERS}.",
                "Send text_layer=ignore to recognize the drawn page.",
            )
        return count

    def characters(self, number: int, count: int, frame: PageFrame, check: Check) -> tuple[PageCharacters, Pixels]:
        """The characters of the page that `count_characters` loaded, and a small gray drawing; `frame` has its size."""
        text_bytes, small_bytes = room_bytes(count), frame.small_width * frame.small_height
        self._grow_canvas(text_bytes + small_bytes)
        sides = (frame.width, frame.height, frame.small_width, frame.small_height)
        request = " ".join(map(str, ("copy", *sides, self._limits.max_pixels)))
        objects, covers, *matrix = self._ask(request, _page(number), check, "copied", 8)
        with resources_exhausted():
            data = os.pread(self._canvas, text_bytes + small_bytes, 0)
        numbers = np.frombuffer(data, np.float64, text_bytes // 8)
        drawing = np.frombuffer(data, np.uint8, small_bytes, text_bytes).reshape(sides[:1:-1])
        return page_characters(numbers, (count, int(objects), int(covers)), tuple(matrix)), drawing

    def close(self) -> None:
        """End the child process and release all resources."""
        self._opened.close()

    def _grow_canvas(self, size_bytes: int) -> None:
        if os.fstat(self._canvas).st_size < size_bytes:
            with resources_exhausted():
                os.ftruncate(self._canvas, size_bytes)

    def _start(self, check: Check) -> int:
        self._child = ChildProcess(_PROGRAM, self._memory_bytes, 0, (self._file, self._canvas), check)
        (count,) = self._ask("open", "The PDF", check, "pages", 1)
        return min(int(count), _MAX_PAGES)

    def _ask(
        self, request: str, subject: str, check: Check, word: str, count: int, limit_s: float | None = None
    ) -> Sequence[float]:
        """Return the `count` numbers after `word` in the child's answer; starts a new child if the last has ended."""
        limit_s = PAGE_LIMIT_S if limit_s is None else limit_s
        if self._child is None or not self._child.is_open:
            self._start(check)
        assert self._child is not None, "it was started"
        try:
            answer, numbers = self._child.ask(request, limit_s, check)
        except ChildLate as late:
            raise BrokenImage(
                f"{subject} takes longer than {limit_s:g} seconds to draw or read.", "Send the page as an image."
            ) from late
        except ChildFailed as failure:
            raise _crash(subject) from failure
        if (answer, len(numbers)) == (word, count):
            return numbers
        error = _error_of(answer, numbers, self._limits.max_pixels)
        if error is None:
            self._end()
        raise error or _crash(subject)

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()


def size_px(width: float, height: float, limits: DrawingLimits) -> tuple[int, int]:
    """Pixel size at which a page, measured in points, is drawn. Raises BrokenImage; ImageTooLarge if below MIN_DPI."""
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise broken("PDF page", "has no size")
    scale = min(limits.dpi / POINTS_PER_INCH, limits.largest_scale(width, height))
    if scale < MIN_DPI / POINTS_PER_INCH:
        raise ImageTooLarge(
            f"This PDF page is {width:.0f} x {height:.0f} points: too large for {MIN_DPI} dpi and "
            f"{limits.max_pixels} pixels (OCRSVC_MAX_PIXELS, OCRSVC_FORMAT_MAX_PIXELS).",
            "Cut it into smaller pages, or ask the operator to raise the limit.",
        )
    return max(1, int(width * scale)), max(1, int(height * scale))


def image_size_px(
    points: tuple[float, float], image: tuple[float, float], limits: DrawingLimits
) -> tuple[int, int] | None:
    """Pixel size at which a page that is one image of `image` pixels is drawn; None if that is below MIN_DPI."""
    across, down = (pixels / side * POINTS_PER_INCH for pixels, side in zip(image, points, strict=True))
    finest = max(across, down)
    if finest < MIN_DPI:
        return None
    if abs(across - down) > _SAME_RESOLUTION * finest:
        # A fax has half the vertical resolution: each of its rows is drawn twice.
        across = down = finest
    width, height = (side * dpi / POINTS_PER_INCH for side, dpi in zip(points, (across, down), strict=True))
    scale = min(1.0, MAX_IMAGE_SCALE * limits.dpi / finest, limits.largest_scale(width, height))
    if finest * scale < MIN_DPI:
        return None
    # At scale 1 the sides differ from whole numbers only by a rounding error.
    rounded = round if scale == 1.0 else int
    return max(1, rounded(width * scale)), max(1, rounded(height * scale))


def _page(number: int) -> str:
    return f"Page {number} of the PDF"


def _crash(subject: str) -> BrokenImage:
    return BrokenImage(
        f"{subject} makes the PDF renderer crash, or takes too much memory.",
        "Check that the file opens in a viewer; send the page as an image.",
    )


def _error_of(answer: str, numbers: Sequence[float], max_pixels: int) -> OcrsvcError | None:
    """Convert an error answer of the child process to an exception; None for any other answer."""
    match answer, numbers:
        case "password", []:
            return EncryptedDocument("This PDF needs a password.", "Send it without one.")
        case "damaged", []:
            return broken("PDF", "is truncated or damaged")
        case "damaged_page", [number]:
            return broken(f"PDF (page {number:.0f})", "is damaged")
        case "no_size", []:
            return broken("PDF page", "has no size")
        case "large_image", [width, height]:
            return ImageTooLarge(
                f"An image on this PDF page declares {width:.0f} x {height:.0f} pixels; the limit is {max_pixels} "
                "(OCRSVC_MAX_PIXELS, OCRSVC_FORMAT_MAX_PIXELS).",
                "Send a smaller image, or ask the operator to raise the limit.",
            )
        case _:
            return None
