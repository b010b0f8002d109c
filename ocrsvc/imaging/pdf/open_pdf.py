"""Draws the pages of a PDF as pixels, in a child process with limits.

pdfium draws them, in a child process for each open PDF: a PDF can make it crash, spin or take memory without end, and
it is not safe to use from two threads. The child has a limit of memory, and of time for each page. If it dies, that is
the PDF's fault, and the next page gets a new one; if it cannot be started, that is the service's.
"""

from __future__ import annotations

import fcntl
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
from ocrsvc.results import Pixels
from ocrsvc.system.child_process import Check, ChildFailed, ChildLate, ChildProcess, resources_exhausted
from ocrsvc.system.shared_memory import READ_ONLY, open_memory

POINTS_PER_INCH: Final = 72
LEAST_DPI: Final = 72  # nothing small is legible below; a page that does not fit its limits at it is too large
PAGE_LIMIT_S: Final = 10.0  # for opening the file, and for each page; a scan of 50 megapixels takes a second or two
OWN_DPI: Final = 1.5
"""How many times the resolution of other pages a page that is one image may have. That bounds its cost: a scan of 600
dpi has nine times the pixels of one at 200."""
_ALIKE: Final = 0.02  # by which an image's resolutions across and down may differ and each still be its own
TEXT_LIMIT_S: Final = 5.0  # for finding a page's characters: a page of ten thousand takes some milliseconds
# A scan of 50 megapixels needs less than half of it; what is drawn lies in the canvas, and is counted apart.
_MEMORY_BYTES: Final = 144 << 20
_BYTES_PER_PIXEL: Final = 4
_PROGRAM: Final = "ocrsvc.imaging.pdf.child"
# pdfium believes a file that says that it has a million.
_MOST_PAGES: Final = 1 << 21


@dataclass(frozen=True, slots=True)
class DrawingLimits:
    """The resolution at which pages are drawn, and the most pixels of a page, and of every image on it."""

    dpi: int
    most_pixels: int
    longest_side: int

    def largest_scale(self, width: float, height: float) -> float:
        """By which a page of these sides can be enlarged or must be shrunk to stay within the limits."""
        return min(math.sqrt(self.most_pixels / width / height), self.longest_side / max(width, height))


class Pdf:
    """An open PDF; `close` it. For one thread. `check` is asked while the child works.

    All that asks the child raises BrokenImage for what is damaged, crashes it, or takes longer than PAGE_LIMIT_S;
    ImageTooLarge for a page, or an image on it, that is too large; ResourcesExhausted where there is no process or
    memory. Opening raises EncryptedDocument where a password is needed.
    """

    def __init__(self, raw: bytes, limits: DrawingLimits, check: Check) -> None:
        self._limits = limits
        self._memory_bytes = _MEMORY_BYTES + len(raw)
        self._child: ChildProcess | None = None
        with ExitStack() as opened:
            with resources_exhausted():
                self._file = open_memory("pdf", raw, READ_ONLY)
                opened.callback(os.close, self._file)
                # It can grow and not shrink: a child that misbehaves must not be able to take it away while it is read.
                self._canvas = open_memory("page", seals=fcntl.F_SEAL_SHRINK)
                opened.callback(os.close, self._canvas)
            opened.callback(self._end)
            self.count = self._start(check)
            if self.count < 1:
                raise broken("PDF", "has no pages")
            self._opened = opened.pop_all()

    def measure(self, number: int, check: Check) -> tuple[int, int]:
        """Width and height in pixels at which a page, from 1, is drawn; nothing is drawn."""
        return size_px(*self._points(number, check), self._limits)

    def measure_image(self, number: int, check: Check) -> tuple[int, int] | None:
        """Width and height in pixels of a page that is one image, as its own pixels give them; None for other pages."""
        request = f"image {number} {self._limits.dpi} {self._limits.most_pixels}"
        across, down = self._ask(request, _page(number), check, "image", 2)
        if not (0 < across < math.inf and 0 < down < math.inf):
            return None
        return image_size_px(self._points(number, check), (across, down), self._limits)

    def _points(self, number: int, check: Check) -> tuple[float, float]:
        width, height = self._ask(f"size {number}", _page(number), check, "points", 2)
        return width, height

    def draw(
        self, number: int, size: tuple[int, int], check: Check, *, gray: bool = False, is_image: bool = False
    ) -> Pixels:
        """One page on white, (H, W) if `gray`, else (H, W, 3) BGR; for `is_image`, `measure_image` gave the size."""
        width, height = size
        size_bytes = width * height * _BYTES_PER_PIXEL
        self._grow_canvas(size_bytes)
        request = f"draw {number} {width} {height} {self._limits.most_pixels} {int(is_image)}"
        self._ask(request, _page(number), check, "drawn", 0)
        with resources_exhausted(), mmap.mmap(self._canvas, size_bytes, access=mmap.ACCESS_READ) as canvas:
            pixels = np.frombuffer(canvas, np.uint8).reshape(height, width, _BYTES_PER_PIXEL)
            drawn = cv2.cvtColor(pixels, cv2.COLOR_BGRA2GRAY if gray else cv2.COLOR_BGRA2BGR)
            del pixels
        return np.asarray(drawn, np.uint8)

    def count_characters(self, number: int, check: Check) -> int:
        """How many characters a page has, which `characters` gives next; finding them takes TEXT_LIMIT_S at most."""
        (count,) = self._ask(f"text {number}", f"The text of page {number}", check, "characters", 1, TEXT_LIMIT_S)
        return int(count)

    def characters(self, number: int, count: int, frame: PageFrame, check: Check) -> tuple[PageCharacters, Pixels]:
        """The characters of the page that was asked for last, and that page in gray with its small sides."""
        text_bytes, small_bytes = room_bytes(count), frame.small_width * frame.small_height
        self._grow_canvas(text_bytes + small_bytes)
        sides = (frame.width, frame.height, frame.small_width, frame.small_height)
        request = " ".join(map(str, ("copy", *sides, self._limits.most_pixels)))
        objects, covers, *matrix = self._ask(request, _page(number), check, "copied", 8)
        with resources_exhausted():
            data = os.pread(self._canvas, text_bytes + small_bytes, 0)
        numbers = np.frombuffer(data, np.float64, text_bytes // 8)
        drawing = np.frombuffer(data, np.uint8, small_bytes, text_bytes).reshape(sides[:1:-1])
        return page_characters(numbers, (count, int(objects), int(covers)), tuple(matrix)), drawing

    def close(self) -> None:
        """End the child, and give everything back."""
        self._opened.close()

    def _grow_canvas(self, size_bytes: int) -> None:
        with resources_exhausted():
            if os.fstat(self._canvas).st_size < size_bytes:
                os.ftruncate(self._canvas, size_bytes)

    def _start(self, check: Check) -> int:
        self._child = ChildProcess(_PROGRAM, self._memory_bytes, 0, (self._file, self._canvas), check)
        (count,) = self._ask("open", "The PDF", check, "pages", 1)
        return min(int(count), _MOST_PAGES)

    def _ask(
        self, request: str, what: str, check: Check, word: str, count: int, limit_s: float | None = None
    ) -> Sequence[float]:
        """The `count` numbers behind `word` in the child's answer, within PAGE_LIMIT_S by default.

        `what` names in messages what the request is about. A new child answers where the last has ended.
        """
        limit_s = PAGE_LIMIT_S if limit_s is None else limit_s
        if self._child is None or not self._child.is_open:
            self._start(check)
        assert self._child is not None, "it was started"
        try:
            said, numbers = self._child.ask(request, limit_s, check)
        except ChildLate as late:
            raise BrokenImage(
                f"{what} takes longer than {limit_s:g} seconds to draw or read.", "Send the page as an image."
            ) from late
        except ChildFailed as failure:
            raise _crash(what) from failure
        if (said, len(numbers)) == (word, count):
            return numbers
        error = _error_of(said, numbers, self._limits.most_pixels)
        if error is None:
            self._end()
        raise error or _crash(what)

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()


def size_px(width: float, height: float, limits: DrawingLimits) -> tuple[int, int]:
    """Width and height in pixels at which a page is drawn whose sides are in points.

    Raises BrokenImage if it has no size, ImageTooLarge if it has too many pixels at LEAST_DPI still.
    """
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise broken("PDF page", "has no size")
    scale = min(limits.dpi / POINTS_PER_INCH, limits.largest_scale(width, height))
    if scale < LEAST_DPI / POINTS_PER_INCH:
        raise ImageTooLarge(
            f"This PDF page is {width:.0f} x {height:.0f} points: too large for {LEAST_DPI} dpi and "
            f"{limits.most_pixels} pixels (OCRSVC_MAX_PIXELS, OCRSVC_FORMAT_MAX_PIXELS).",
            "Cut it into smaller pages, or ask the operator to raise the limit.",
        )
    return max(1, int(width * scale)), max(1, int(height * scale))


def image_size_px(
    points: tuple[float, float], own: tuple[float, float], limits: DrawingLimits
) -> tuple[int, int] | None:
    """Width and height in pixels at which a page of these points is drawn whose image has `own` pixels on it.

    None where the image has no usual resolution.
    """
    across, down = (pixels / side * POINTS_PER_INCH for pixels, side in zip(own, points, strict=True))
    finest = max(across, down)
    if finest < LEAST_DPI:
        return None
    if abs(across - down) > _ALIKE * finest:
        # That of a fax has half as many rows: they are drawn twice.
        across = down = finest
    width, height = (side * one / POINTS_PER_INCH for side, one in zip(points, (across, down), strict=True))
    scale = min(1.0, OWN_DPI * limits.dpi / finest, limits.largest_scale(width, height))
    if finest * scale < LEAST_DPI:
        return None
    # A whole number of the image's own pixels is that number but for a rounding error.
    rounded = round if scale == 1.0 else int
    return max(1, rounded(width * scale)), max(1, rounded(height * scale))


def _page(number: int) -> str:
    return f"Page {number} of the PDF"


def _crash(what: str) -> BrokenImage:
    return BrokenImage(
        f"{what} makes the program crash that draws it, or takes too much memory.",
        "Check that the file opens in a viewer; send the page as an image.",
    )


def _error_of(said: str, numbers: Sequence[float], most_pixels: int) -> OcrsvcError | None:
    """The error for the child's answer; None for an answer that it never gives."""
    match said, numbers:
        case "password", []:
            return EncryptedDocument("This PDF needs a password.", "Send it without one.")
        case "damaged", []:
            return broken("PDF", "is cut off or damaged")
        case "damaged_page", [number]:
            return broken(f"PDF (page {number:.0f})", "is damaged")
        case "no_size", []:
            return broken("PDF page", "has no size")
        case "large_image", [width, height]:
            return ImageTooLarge(
                f"An image on this PDF page declares {width:.0f} x {height:.0f} pixels; the limit is {most_pixels} "
                "(OCRSVC_MAX_PIXELS, OCRSVC_FORMAT_MAX_PIXELS).",
                "Send a smaller image, or ask the operator to raise the limit.",
            )
        case _:
            return None
