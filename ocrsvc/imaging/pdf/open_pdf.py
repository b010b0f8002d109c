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
from typing import Final

import cv2
import numpy as np

from ocrsvc.errors import BrokenImage, EncryptedDocument, ImageTooLarge, OcrsvcError
from ocrsvc.imaging.codecs.encoded_image import broken
from ocrsvc.imaging.pdf.characters import room_bytes
from ocrsvc.imaging.pdf.copied_text import CopiedText, PageFrame
from ocrsvc.records import Pixels
from ocrsvc.system.child_process import Check, ChildFailed, ChildLate, ChildProcess, resources_exhausted
from ocrsvc.system.shared_memory import READ_ONLY, open_memory

POINTS_PER_INCH: Final = 72
LEAST_DPI: Final = 72
"""Below this nothing small is legible; a page that does not fit its limits at this resolution is too large."""
PAGE_LIMIT_S: Final = 10.0
"""For opening the file, and for each page; a scan of 50 megapixels takes a second or two."""
OWN_DPI: Final = 1.5
"""Of the resolution at which pages are drawn, up to which a page that is one image has its own. That bounds what such a
page takes: a scan of 600 dpi has nine times the pixels of one at 200."""
_ALIKE: Final = 0.02
"""By which an image's resolutions across and down may differ and each still be its own."""
TEXT_LIMIT_S: Final = 5.0
"""For finding a page's characters: a page of ten thousand takes some milliseconds."""
# A scan of 50 megapixels needs less than half of it; what is drawn lies in the canvas, and is counted apart.
_MEMORY_BYTES: Final = 144 << 20
_BYTES_PER_PIXEL: Final = 4
_PROGRAM: Final = "ocrsvc.imaging.pdf.child"
# pdfium believes a file that says that it has a million.
_MOST_PAGES: Final = 1 << 21


class Pdf:
    """An open PDF; `close` it. For one thread.

    Args:
        raw: The whole file.
        most_pixels: Of a page, and of every image on it.
        check: Asked while the child works.

    Raises:
        EncryptedDocument: It needs a password.
        BrokenImage: It cannot be opened, or has no pages.
        ResourcesExhausted: There is no process or memory for it.
    """

    def __init__(self, raw: bytes, most_pixels: int, check: Check) -> None:
        self._most_pixels = most_pixels
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

    def measure(self, number: int, dpi: int, longest_side: int, check: Check) -> tuple[int, int]:
        """Width and height in pixels at which `draw` would draw a page; nothing is drawn.

        Args:
            number: From 1.
            dpi: Pixels an inch.
            longest_side: In pixels.
            check: Asked while the child works.

        Raises:
            ImageTooLarge: The page is too large.
            BrokenImage: It is damaged, or takes longer than PAGE_LIMIT_S.
            ResourcesExhausted: There is no process for it.
        """
        return size_px(*self._points(number, check), dpi, self._most_pixels, longest_side)

    def measure_image(self, number: int, dpi: int, longest_side: int, check: Check) -> tuple[int, int] | None:
        """Width and height in pixels of a page that is one image, as its own pixels give them; None for other pages.

        Args:
            number, longest_side, check: As for `measure`.
            dpi: At which other pages are drawn: one of more than OWN_DPI times that is scaled down to it.

        Raises:
            ImageTooLarge, BrokenImage, ResourcesExhausted: As for `draw`.
        """
        request = f"image {number} {dpi} {self._most_pixels}"
        own = self._ask(request, f"Page {number} of the PDF", check, "image", 2)
        if not all(0 < side < math.inf for side in own):
            return None
        return image_size_px(self._points(number, check), (own[0], own[1]), dpi, self._most_pixels, longest_side)

    def _points(self, number: int, check: Check) -> tuple[float, float]:
        """Width and height of a page in points."""
        width, height = self._ask(f"size {number}", f"Page {number} of the PDF", check, "points", 2)
        return width, height

    def draw(
        self,
        number: int,
        dpi: int,
        longest_side: int,
        check: Check,
        *,
        gray: bool,
        image_size: tuple[int, int] | None = None,
    ) -> Pixels:
        """One page on white, at a lower resolution where it has too many pixels otherwise.

        Args:
            number, dpi, longest_side, check: As for `measure`.
            gray: (H, W) instead of (H, W, 3) BGR.
            image_size: What `measure_image` gave, for a drawing of that size; None for one as `measure` gives it.

        Raises:
            ImageTooLarge: The page, or an image on it, is too large.
            BrokenImage: The page cannot be drawn, or takes longer than PAGE_LIMIT_S.
            ResourcesExhausted: There is no process or memory for it.
        """
        width, height = image_size or self.measure(number, dpi, longest_side, check)
        size_bytes = width * height * _BYTES_PER_PIXEL
        self._grow_canvas(size_bytes)
        request = f"draw {number} {width} {height} {self._most_pixels} {int(image_size is not None)}"
        self._ask(request, f"Page {number} of the PDF", check, "drawn", 0)
        with resources_exhausted(), mmap.mmap(self._canvas, size_bytes, access=mmap.ACCESS_READ) as canvas:
            pixels = np.frombuffer(canvas, np.uint8).reshape(height, width, _BYTES_PER_PIXEL)
            drawn = cv2.cvtColor(pixels, cv2.COLOR_BGRA2GRAY if gray else cv2.COLOR_BGRA2BGR)
            del pixels
        return np.asarray(drawn, np.uint8)

    def count_characters(self, number: int, check: Check) -> int:
        """How many characters a page has, which `characters` gives next.

        Raises:
            BrokenImage: It is damaged, or has so many that they take longer than TEXT_LIMIT_S.
            ResourcesExhausted: There is no process for it.
        """
        (count,) = self._ask(f"text {number}", f"The text of page {number}", check, "characters", 1, TEXT_LIMIT_S)
        return int(count)

    def characters(self, number: int, count: int, frame: PageFrame, check: Check) -> CopiedText:
        """The characters of the page that was asked for last, and a small drawing of it.

        Args:
            number: Of that page, from 1.
            count: How many they are.
            frame: How large the page is drawn.
            check: As for `measure`.

        Raises:
            As `draw` does.
        """
        text_bytes = room_bytes(count)
        self._grow_canvas(text_bytes + frame.small_width * frame.small_height)
        sides = (frame.width, frame.height, frame.small_width, frame.small_height)
        request = " ".join(map(str, ("copy", *sides, self._most_pixels)))
        objects, covers, *matrix = self._ask(request, f"Page {number} of the PDF", check, "copied", 8)
        with resources_exhausted():
            data = os.pread(self._canvas, text_bytes + frame.small_width * frame.small_height, 0)
        return CopiedText(data, count, int(objects), int(covers), tuple(matrix), frame)

    def close(self) -> None:
        """End the child, and give everything back."""
        self._opened.close()

    def _grow_canvas(self, size_bytes: int) -> None:
        with resources_exhausted():
            if os.fstat(self._canvas).st_size < size_bytes:
                os.ftruncate(self._canvas, size_bytes)

    def _start(self, check: Check) -> int:
        """A child that has the file open; how many pages that has."""
        self._child = ChildProcess(_PROGRAM, self._memory_bytes, 0, (self._file, self._canvas), check)
        (count,) = self._ask("open", "The PDF", check, "pages", 1)
        return min(int(count), _MOST_PAGES)

    def _ask(
        self, request: str, what: str, check: Check, word: str, count: int, limit_s: float | None = None
    ) -> Sequence[float]:
        """Ask the child, a new one where the last has ended.

        Args:
            request: As `ocrsvc.imaging.pdf.child` says.
            what: What the request is about, for people.
            check: Asked meanwhile.
            word, count: The answer expected, and how many numbers it has.
            limit_s: Seconds that it may take; None is PAGE_LIMIT_S.

        Returns:
            These numbers.
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
        error = _error_of(said, numbers, self._most_pixels)
        if error is None:
            self._end()
        raise error or _crash(what)

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()


def size_px(width: float, height: float, dpi: int, most_pixels: int, longest_side: int) -> tuple[int, int]:
    """Width and height in pixels at which a page is drawn whose sides are in points.

    Raises:
        BrokenImage: It has no size.
        ImageTooLarge: It has too many pixels at LEAST_DPI still.
    """
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise broken("PDF page", "has no size")
    fitting = min(math.sqrt(most_pixels / width / height), longest_side / max(width, height))
    scale = min(dpi / POINTS_PER_INCH, fitting)
    if scale < LEAST_DPI / POINTS_PER_INCH:
        raise ImageTooLarge(
            f"This PDF page is {width:.0f} x {height:.0f} points: too large for {LEAST_DPI} dpi and {most_pixels} "
            "pixels (OCRSVC_MAX_PIXELS, OCRSVC_FORMAT_MAX_PIXELS).",
            "Cut it into smaller pages, or ask the operator to raise the limit.",
        )
    return max(1, int(width * scale)), max(1, int(height * scale))


def image_size_px(
    points: tuple[float, float], own: tuple[float, float], dpi: int, most_pixels: int, longest_side: int
) -> tuple[int, int] | None:
    """Width and height in pixels at which a page is drawn that is one image; None where that has no usual resolution.

    Args:
        points: The page's width and height.
        own: How many pixels of the image fit into them.
        dpi: At which other pages are drawn.
        most_pixels, longest_side: That the drawing may have.
    """
    across, down = (pixels / side * POINTS_PER_INCH for pixels, side in zip(own, points, strict=True))
    finest = max(across, down)
    if finest < LEAST_DPI:
        return None
    if abs(across - down) > _ALIKE * finest:
        # That of a fax has half as many rows: they are drawn twice.
        across = down = finest
    width, height = (side * one / POINTS_PER_INCH for side, one in zip(points, (across, down), strict=True))
    scale = min(1.0, OWN_DPI * dpi / finest, math.sqrt(most_pixels / width / height), longest_side / max(width, height))
    if finest * scale < LEAST_DPI:
        return None
    # A whole number of the image's own pixels is that number but for a rounding error.
    rounded = round if scale == 1.0 else int
    return max(1, rounded(width * scale)), max(1, rounded(height * scale))


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
