"""The program that draws the pages of one PDF, in a process of its own: what does it answer to each line?

    python -m ocrsvc.imaging.pdf_child FILE CANVAS MEMORY

FILE and CANVAS are numbers of open files, MEMORY is the most bytes of address space. It tells how many pages there are,
and then answers each line [number, dpi, most_pixels, longest_side] on its standard input, all in JSON, a line each:
[width, height] when the page lies on the canvas, as rows of blue, green, red and an unused byte; or {"wrong": why}.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

POINTS_PER_INCH: Final = 72
LEAST_DPI: Final = 72
"""Below this nothing small is legible; a page that does not fit its limits at this resolution is too large."""

_DEEPEST_FORM: Final = 8
_PR_SET_PDEATHSIG: Final = 1
_BYTES_PER_PIXEL: Final = 4


class WrongPage(Exception):
    """Why a page cannot be drawn: a word for the parent, and the numbers that belong to it."""

    def __init__(self, word: str, *numbers: float) -> None:
        super().__init__(word, *numbers)
        self.told: list[object] = [word, *numbers]


def size_px(width: float, height: float, dpi: int, most_pixels: int, longest_side: int) -> tuple[int, int]:
    """Width and height in pixels at which a page is drawn whose sides are in points.

    Raises:
        WrongPage: It has no size, or too many pixels at LEAST_DPI still.
    """
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise WrongPage("no size")
    fitting = min(math.sqrt(most_pixels / width / height), longest_side / max(width, height))
    scale = min(dpi / POINTS_PER_INCH, fitting)
    if scale < LEAST_DPI / POINTS_PER_INCH:
        raise WrongPage("large page", width, height)
    return max(1, int(width * scale)), max(1, int(height * scale))


class _Drawer:
    """pdfium with one open PDF."""

    def __init__(self, pdfium: Any, data: mmap.mmap, canvas: int) -> None:
        self._pdfium, self._data, self._canvas = pdfium, data, canvas
        start = ctypes.c_char.from_buffer(data)
        self._handle = pdfium.FPDF_LoadMemDocument64(ctypes.addressof(start), len(data), None)
        if not self._handle:
            secret = pdfium.FPDF_GetLastError() in {pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY}
            raise WrongPage("password" if secret else "damaged")
        self.count = int(pdfium.FPDF_GetPageCount(self._handle))
        self._form = self._open_form()

    def draw(self, number: int, dpi: int, most_pixels: int, longest_side: int) -> tuple[int, int]:
        """One page onto the canvas; gives its size in pixels. Raises WrongPage."""
        pdfium = self._pdfium
        with self._page(number) as page:
            width, height = float(pdfium.FPDF_GetPageWidthF(page)), float(pdfium.FPDF_GetPageHeightF(page))
            size = size_px(width, height, dpi, most_pixels, longest_side)
            for image in self._images(page, pdfium.FPDFPage_CountObjects, pdfium.FPDFPage_GetObject, 0):
                self._check_image(image, most_pixels)
            self._draw(page, *size)
        return size

    def _open_form(self) -> Any:
        """What draws the fields of a form, which are no part of the page itself; None without fields."""
        if self._pdfium.FPDF_GetFormType(self._handle) == self._pdfium.FORMTYPE_NONE:
            return None
        self._form_info = self._pdfium.FPDF_FORMFILLINFO(version=2)
        return self._pdfium.FPDFDOC_InitFormFillEnvironment(self._handle, self._form_info)

    @contextmanager
    def _page(self, number: int) -> Iterator[Any]:
        page = self._pdfium.FPDF_LoadPage(self._handle, number - 1)
        if not page:
            raise WrongPage("damaged page", number)
        try:
            if self._form:
                self._pdfium.FORM_OnAfterLoadPage(page, self._form)
            yield page
        finally:
            if self._form:
                self._pdfium.FORM_OnBeforeClosePage(page, self._form)
            self._pdfium.FPDF_ClosePage(page)

    def _images(
        self, owner: Any, count: Callable[[Any], int], get: Callable[[Any, int], Any], depth: int
    ) -> Iterator[Any]:
        """The images of a page or form, and of the forms in it."""
        pdfium = self._pdfium
        for index in range(count(owner)):
            item = get(owner, index)
            kind = pdfium.FPDFPageObj_GetType(item)
            if kind == pdfium.FPDF_PAGEOBJ_IMAGE:
                yield item
            elif kind == pdfium.FPDF_PAGEOBJ_FORM and depth < _DEEPEST_FORM:
                counting, getting = pdfium.FPDFFormObj_CountObjects, pdfium.FPDFFormObj_GetObject
                yield from self._images(item, counting, getting, depth + 1)

    def _check_image(self, image: Any, most_pixels: int) -> None:
        """Raises WrongPage: a few bytes can declare an image that takes gigabytes to unpack."""
        width, height = ctypes.c_uint(), ctypes.c_uint()
        known = self._pdfium.FPDFImageObj_GetImagePixelSize(image, width, height)
        if known and width.value * height.value > most_pixels:
            raise WrongPage("large image", width.value, height.value)

    def _draw(self, page: Any, width: int, height: int) -> None:
        pdfium, stride = self._pdfium, width * _BYTES_PER_PIXEL
        if os.fstat(self._canvas).st_size < stride * height:
            os.ftruncate(self._canvas, stride * height)
        with mmap.mmap(self._canvas, stride * height) as canvas:
            start = ctypes.c_char.from_buffer(canvas)
            try:
                where = ctypes.addressof(start)
                bitmap = pdfium.FPDFBitmap_CreateEx(width, height, pdfium.FPDFBitmap_BGRx, where, stride)
                pdfium.FPDFBitmap_FillRect(bitmap, 0, 0, width, height, 0xFFFFFFFF)
                how = (0, 0, width, height, 0, pdfium.FPDF_ANNOT | pdfium.FPDF_RENDER_LIMITEDIMAGECACHE)
                pdfium.FPDF_RenderPageBitmap(bitmap, page, *how)
                if self._form:
                    pdfium.FPDF_FFLDraw(self._form, bitmap, page, *how)
                pdfium.FPDFBitmap_Destroy(bitmap)
            finally:
                # The canvas cannot be unmapped while anything points into it.
                del start


def main() -> None:
    """Serve one parent, until it closes the line."""
    file, canvas, memory = map(int, sys.argv[1:])
    bound_process(memory)
    import pypdfium2.raw as pdfium

    data = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    try:
        drawer = _Drawer(pdfium, data, canvas)
    except WrongPage as wrong:
        _tell({"wrong": wrong.told})
        return
    _tell(drawer.count)
    for line in sys.stdin:
        try:
            _tell(drawer.draw(*json.loads(line)))
        except WrongPage as wrong:
            _tell({"wrong": wrong.told})


def bound_process(memory: int) -> None:
    """Take no more than this, leave nothing behind, and go with the parent."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for known in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(known, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _tell(answer: object) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    # Nothing is worth tidying up, and pdfium need not be asked whether it agrees.
    os._exit(0)
