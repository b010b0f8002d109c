"""How does a page of a PDF become pixels?

pdfium draws it. It is not safe to use from two threads, and everything it has is one for the process; so all that is
done with it is done in turns. What it is told to draw is bounded first: the size of the page, and of the images on it.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import cv2
import numpy as np

from ocrsvc.errors import EncryptedDocument, ImageTooLarge, OcrsvcError
from ocrsvc.imaging.picture import broken
from ocrsvc.records import Pixels

Check = Callable[[], object]
"""Raises what ends the request when nobody waits for it any more."""

POINTS_PER_INCH: Final = 72
LEAST_DPI: Final = 72
"""Below this nothing small is legible; a page that does not fit its limits at this resolution is too large."""

_ONE_AT_A_TIME: Final = threading.Lock()
_LOOK_UP_S: Final = 0.25
_DEEPEST_FORM: Final = 8


class Pdf:
    """An open PDF; `close` it. Every call waits for its turn with pdfium.

    Args:
        raw: The whole file.
        check: Asked while another thread has its turn.

    Raises:
        EncryptedDocument: It needs a password.
        BrokenImage: It cannot be opened, or has no pages.
    """

    def __init__(self, raw: bytes, check: Check) -> None:
        self._raw = raw  # pdfium reads in it as long as the file is open
        with _turn(check) as pdfium:
            self._handle = pdfium.FPDF_LoadMemDocument64(raw, len(raw), None)
            if not self._handle:
                raise _not_opened(pdfium)
            self.count = int(pdfium.FPDF_GetPageCount(self._handle))
            self._form_info, self._form = _open_form(pdfium, self._handle)
        if self.count < 1:
            self.close()
            raise broken("PDF", "has no pages")

    def draw(self, number: int, dpi: int, most_pixels: int, longest_side: int, check: Check) -> Pixels:
        """One page (H, W, 3) BGR on white, at a lower resolution where it has too many pixels otherwise.

        Args:
            number: From 1.
            dpi: Pixels an inch.
            most_pixels: Of the page, and of every image on it.
            longest_side: In pixels.
            check: Asked while this waits, and while pdfium draws.

        Raises:
            ImageTooLarge: The page, or an image on it, is too large.
            BrokenImage: The page cannot be drawn.
        """
        with _turn(check) as pdfium, _page(pdfium, self._handle, self._form, number) as page:
            width, height = (float(pdfium.FPDF_GetPageWidthF(page)), float(pdfium.FPDF_GetPageHeightF(page)))
            size = size_px(width, height, dpi, most_pixels, longest_side)
            _check_images(pdfium, page, most_pixels)
            return _draw(pdfium, page, self._form, size, check)

    def close(self) -> None:
        """Give everything back."""
        with _turn(lambda: None) as pdfium:
            if self._form:
                pdfium.FPDFDOC_ExitFormFillEnvironment(self._form)
            if self._handle:
                pdfium.FPDF_CloseDocument(self._handle)
            self._form = self._handle = None


def size_px(width: float, height: float, dpi: int, most_pixels: int, longest_side: int) -> tuple[int, int]:
    """Width and height in pixels at which a page is drawn whose sides are in points.

    Raises:
        BrokenImage: The page has no size.
        ImageTooLarge: It has too many pixels at LEAST_DPI still.
    """
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise broken("PDF page", "has no size")
    fitting = min(math.sqrt(most_pixels / width / height), longest_side / max(width, height))
    scale = min(dpi / POINTS_PER_INCH, fitting)
    if scale < LEAST_DPI / POINTS_PER_INCH:
        raise ImageTooLarge(
            f"This PDF page is {width:.0f} x {height:.0f} points; at {LEAST_DPI} dpi that is more than {most_pixels} "
            f"pixels, or a side longer than {longest_side}.",
            "Cut it into smaller pages, or ask the operator to raise the limit (OCRSVC_MAX_PIXELS).",
        )
    return max(1, int(width * scale)), max(1, int(height * scale))


@contextmanager
def _turn(check: Check) -> Iterator[Any]:
    """pdfium, for as long as the block lasts. Loaded when the first PDF comes: most services never see one."""
    while not _ONE_AT_A_TIME.acquire(timeout=_LOOK_UP_S):
        check()
    try:
        check()
        import pypdfium2.raw

        yield pypdfium2.raw
    finally:
        _ONE_AT_A_TIME.release()


def _not_opened(pdfium: Any) -> OcrsvcError:
    if pdfium.FPDF_GetLastError() in {pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY}:
        return EncryptedDocument("This PDF needs a password.", "Send it without one.")
    return broken("PDF", "is cut off or damaged")


def _open_form(pdfium: Any, handle: Any) -> tuple[Any, Any]:
    """What draws the fields of a form, which are no part of the page itself; without fields, nothing."""
    if pdfium.FPDF_GetFormType(handle) == pdfium.FORMTYPE_NONE:
        return None, None
    info = pdfium.FPDF_FORMFILLINFO(version=2)
    return info, pdfium.FPDFDOC_InitFormFillEnvironment(handle, info)


@contextmanager
def _page(pdfium: Any, handle: Any, form: Any, number: int) -> Iterator[Any]:
    page = pdfium.FPDF_LoadPage(handle, number - 1)
    if not page:
        raise broken(f"page {number} of the PDF", "is damaged")
    try:
        if form:
            pdfium.FORM_OnAfterLoadPage(page, form)
        yield page
    finally:
        if form:
            pdfium.FORM_OnBeforeClosePage(page, form)
        pdfium.FPDF_ClosePage(page)


def _check_images(pdfium: Any, page: Any, most_pixels: int) -> None:
    """Raises ImageTooLarge: a few bytes can declare an image that takes gigabytes to unpack."""
    width, height = ctypes.c_uint(), ctypes.c_uint()
    for image in _images(pdfium, page, pdfium.FPDFPage_CountObjects, pdfium.FPDFPage_GetObject, 0):
        if pdfium.FPDFImageObj_GetImagePixelSize(image, width, height) and width.value * height.value > most_pixels:
            raise ImageTooLarge(
                f"An image on this PDF page declares {width.value} x {height.value} pixels; the limit is {most_pixels} "
                "(OCRSVC_MAX_PIXELS, OCRSVC_FORMAT_MAX_PIXELS).",
                "Send a smaller image, or ask the operator to raise the limit.",
            )


def _images(pdfium: Any, owner: Any, count: Any, get: Any, depth: int) -> Iterator[Any]:
    """The images of a page or form, and of the forms in it."""
    for index in range(count(owner)):
        item = get(owner, index)
        kind = pdfium.FPDFPageObj_GetType(item)
        if kind == pdfium.FPDF_PAGEOBJ_IMAGE:
            yield item
        elif kind == pdfium.FPDF_PAGEOBJ_FORM and depth < _DEEPEST_FORM:
            yield from _images(pdfium, item, pdfium.FPDFFormObj_CountObjects, pdfium.FPDFFormObj_GetObject, depth + 1)


def _draw(pdfium: Any, page: Any, form: Any, size: tuple[int, int], check: Check) -> Pixels:
    width, height = size
    pixels = np.full((height, width, 4), 255, np.uint8)
    bitmap = pdfium.FPDFBitmap_CreateEx(width, height, pdfium.FPDFBitmap_BGRx, pixels.ctypes.data, pixels.strides[0])
    if not bitmap:
        raise broken("PDF page", "cannot be drawn")
    try:
        frame, flags = (0, 0, width, height, 0), pdfium.FPDF_ANNOT | pdfium.FPDF_RENDER_LIMITEDIMAGECACHE
        _draw_in_steps(pdfium, bitmap, page, (*frame, flags), check)
        if form:
            pdfium.FPDF_FFLDraw(form, bitmap, page, *frame, flags)
    finally:
        pdfium.FPDFBitmap_Destroy(bitmap)
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGRA2BGR), np.uint8)


def _draw_in_steps(pdfium: Any, bitmap: Any, page: Any, how: tuple[int, ...], check: Check) -> None:
    """Draw until it is done, or until `check` raises: between two objects pdfium asks whether it shall go on."""
    pause = pdfium.IFSDK_PAUSE(version=1, user=None)
    pause.NeedToPauseNow = type(pause.NeedToPauseNow)(_asking_seldom(check))
    try:
        status = pdfium.FPDF_RenderPageBitmap_Start(bitmap, page, *how, pause)
        check()
        if status != pdfium.FPDF_RENDER_DONE:
            raise broken("PDF page", "cannot be drawn")
    finally:
        pdfium.FPDF_RenderPage_Close(page)


def _asking_seldom(check: Check) -> Callable[[object], int]:
    """What pdfium asks thousands of times a second: 1 once `check` has raised."""
    asked_s = time.monotonic()

    def is_over(_pause: object) -> int:
        nonlocal asked_s
        if time.monotonic() - asked_s < _LOOK_UP_S:
            return 0
        asked_s = time.monotonic()
        try:
            check()
        except OcrsvcError:
            return 1
        return 0

    return is_over
