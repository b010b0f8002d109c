"""The program that draws the pages of one PDF, in a process of its own.

    python -m ocrsvc.imaging.pdf_child PARENT MEMORY FILE_BYTES FILE CANVAS

FILE and CANVAS are numbers of open files. It answers `open` with `pages COUNT`, `size NUMBER` with `points WIDTH
HEIGHT`, and `draw NUMBER WIDTH HEIGHT MOST_PIXELS` with `drawn` when the page lies on the canvas, as rows of blue,
green, red and an unused byte.

`text NUMBER` opens the text of a page and answers `characters COUNT`. `copy WIDTH HEIGHT SMALL_WIDTH SMALL_HEIGHT
MOST_PIXELS` answers `copied OBJECTS COVERS A B C D E F` when that text lies on the canvas as `pdf_characters.py` says,
and behind it the page drawn in gray with the small sides, unless these are 0. A to F make pixels of points, for a page
of WIDTH x HEIGHT. Instead of each it may say what is wrong with the file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from ocrsvc.imaging.pdf_characters import CharacterCopier, room_bytes
from ocrsvc.system.child_program import RequestFailed, apply_limits, pack, serve

FONT_FOLDERS: Final = (
    *("/usr/share/fonts", "/usr/local/share/fonts"),
    *("/usr/share/X11/fonts/Type1", "/usr/share/X11/fonts/TTF"),
)
"""Where pdfium looks for fonts that a file does not bring."""

_DEEPEST_FORM: Final = 8
_BYTES_PER_PIXEL: Final = 4
_LARGEST_SIDE: Final = 1e9
_CONFIG_VERSION: Final = 2


class _Drawer:
    """pdfium with one PDF."""

    def __init__(self, pdfium: Any, file: int, canvas: int) -> None:
        self._pdfium, self._canvas = pdfium, canvas
        self._data = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
        self._handle: Any = None
        self._form: Any = None
        self._text: tuple[Any, CharacterCopier] | None = None
        self._opened = ExitStack()

    def open(self) -> str:
        """The number of pages."""
        pdfium = self._pdfium
        start = ctypes.c_char.from_buffer(self._data)
        self._handle = pdfium.FPDF_LoadMemDocument64(ctypes.addressof(start), len(self._data), None)
        if not self._handle:
            secret = pdfium.FPDF_GetLastError() in {pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY}
            raise RequestFailed("password" if secret else "damaged")
        self._form = self._open_form()
        return pack("pages", pdfium.FPDF_GetPageCount(self._handle))

    def size(self, number: int) -> str:
        """Width and height of a page in points; its content is not read."""
        size = self._pdfium.FS_SIZEF()
        if not self._pdfium.FPDF_GetPageSizeByIndexF(self._handle, number - 1, size):
            raise RequestFailed("damaged_page", number)
        width, height = float(size.width), float(size.height)
        # Neither less nor more is a number that can be sent.
        if not (0 < width < _LARGEST_SIDE and 0 < height < _LARGEST_SIDE):
            raise RequestFailed("no_size")
        return pack("points", width, height)

    def draw(self, number: int, width: int, height: int, most_pixels: int) -> str:
        """One page onto the canvas."""
        self._close_text()
        with self._page(number) as page:
            self._check_images(page, most_pixels)
            self._draw(page, width, height)
        return pack("drawn")

    def text(self, number: int) -> str:
        """How many characters a page has; it stays open for `copy`, until the next one is."""
        self._close_text()
        page = self._opened.enter_context(self._page(number))
        copier = CharacterCopier(self._pdfium, page)
        self._opened.callback(copier.close)
        self._text = page, copier
        return pack("characters", copier.count)

    def copy(self, width: int, height: int, small_width: int, small_height: int, most_pixels: int) -> str:
        """These characters onto the canvas, and a small drawing behind them."""
        if self._text is None:
            raise RequestFailed("no_text")
        page, copier = self._text
        if small_width and small_height:
            self._check_images(page, most_pixels)
        characters_bytes = room_bytes(copier.count)
        with mmap.mmap(self._canvas, characters_bytes + small_width * small_height) as canvas:
            counts = copier.copy(canvas)
            if small_width and small_height:
                self._draw_small(page, canvas, characters_bytes, small_width, small_height)
        return pack("copied", *counts, *copier.to_pixels(width, height))

    def _close_text(self) -> None:
        self._text = None
        self._opened.close()

    def _draw_small(self, page: Any, canvas: mmap.mmap, at: int, width: int, height: int) -> None:
        start = ctypes.c_char.from_buffer(canvas, at)
        try:
            self._draw_on(page, ctypes.addressof(start), width, height, gray=True)
        finally:
            del start

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
            raise RequestFailed("damaged_page", number)
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

    def _check_images(self, page: Any, most_pixels: int) -> None:
        pdfium = self._pdfium
        for image in self._images(page, pdfium.FPDFPage_CountObjects, pdfium.FPDFPage_GetObject, 0):
            self._check_image(image, most_pixels)

    def _check_image(self, image: Any, most_pixels: int) -> None:
        """Raises RequestFailed: a few bytes can declare an image that takes gigabytes to unpack."""
        width, height = ctypes.c_uint(), ctypes.c_uint()
        known = self._pdfium.FPDFImageObj_GetImagePixelSize(image, width, height)
        if known and width.value * height.value > most_pixels:
            raise RequestFailed("large_image", width.value, height.value)

    def _draw(self, page: Any, width: int, height: int) -> None:
        with mmap.mmap(self._canvas, width * height * _BYTES_PER_PIXEL) as canvas:
            start = ctypes.c_char.from_buffer(canvas)
            try:
                self._draw_on(page, ctypes.addressof(start), width, height, gray=False)
            finally:
                # The canvas cannot be unmapped while anything points into it.
                del start

    def _draw_on(self, page: Any, where: int, width: int, height: int, *, gray: bool) -> None:
        """Draw the page on white, at an address."""
        pdfium = self._pdfium
        kind, stride = (pdfium.FPDFBitmap_Gray, width) if gray else (pdfium.FPDFBitmap_BGRx, width * _BYTES_PER_PIXEL)
        bitmap = pdfium.FPDFBitmap_CreateEx(width, height, kind, where, stride)
        pdfium.FPDFBitmap_FillRect(bitmap, 0, 0, width, height, 0xFFFFFFFF)
        how = (0, 0, width, height, 0, pdfium.FPDF_ANNOT | pdfium.FPDF_RENDER_LIMITEDIMAGECACHE)
        pdfium.FPDF_RenderPageBitmap(bitmap, page, *how)
        if self._form:
            pdfium.FPDF_FFLDraw(self._form, bitmap, page, *how)
        pdfium.FPDFBitmap_Destroy(bitmap)


def load_pdfium() -> Any:
    """pdfium's own functions. The package around them takes as long to load as everything else in this process."""
    from pypdfium2_raw import bindings

    bindings.FPDF_InitLibraryWithConfig(bindings.FPDF_LIBRARY_CONFIG(version=_CONFIG_VERSION))
    return bindings


def main() -> None:
    """Serve one parent, until it closes the connection."""
    file, canvas = apply_limits()
    drawer = _Drawer(load_pdfium(), file, canvas)
    answers: dict[str, Callable[..., str]] = {
        "open": drawer.open,
        "size": drawer.size,
        "draw": drawer.draw,
        "text": drawer.text,
        "copy": drawer.copy,
    }
    serve(answers, FONT_FOLDERS)


if __name__ == "__main__":
    main()
    # Nothing is worth tidying up, and pdfium need not be asked whether it agrees.
    os._exit(0)
