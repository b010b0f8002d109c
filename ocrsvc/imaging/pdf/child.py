"""The child process that draws the pages of one PDF and extracts their text.

    python -m ocrsvc.imaging.pdf.child PARENT MEMORY FILE_BYTES FILE CANVAS

FILE and CANVAS are descriptors of the PDF and of the memory shared with the parent. Requests and their answers (or an
error word such as `damaged`):

- `open`: `pages COUNT`.
- `size NUMBER`: `points WIDTH HEIGHT`.
- `draw NUMBER WIDTH HEIGHT MAX_PIXELS EXACT`: `drawn`; the canvas then holds the page, 4 bytes per pixel: blue, green,
  red, unused. With EXACT 1 each pixel of the page's only image becomes one pixel of the canvas.
- `image NUMBER DPI MAX_PIXELS`: `image ACROSS DOWN`, the page's width and height in pixels of its only image; 0 0 for
  other pages, and for a partly transparent image below DPI, as its mask may be finer than the image.
- `text NUMBER`: `characters COUNT`; the text stays open for `copy`.
- `copy WIDTH HEIGHT SMALL_WIDTH SMALL_HEIGHT MAX_PIXELS`: `copied OBJECTS COVERS A B C D E F`; the canvas then holds
  the text (layout in `child_text.py`) and, unless the small sides are 0, a gray drawing of that size. OBJECTS is the
  number of text objects, COVERS that of objects drawn over text. A to F map points to pixels of a WIDTH x HEIGHT page.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from ocrsvc.imaging.pdf.child_text import PageText, displayed, objects_of, room_bytes
from ocrsvc.system.child_program import RequestFailed, apply_limits, pack, serve

# pdfium searches these folders for fonts that a PDF does not embed.
_X11_FONTS: Final = "/usr/share/X11/fonts"
FONT_FOLDERS: Final = ("/usr/share/fonts", "/usr/local/share/fonts", f"{_X11_FONTS}/Type1", f"{_X11_FONTS}/TTF")

_BYTES_PER_PIXEL: Final = 4
_LARGEST_SIDE: Final = 1e9
_POINTS_PER_INCH: Final = 72
_UNITS: Final = 1 << 20  # units per page side for positions, which pdfium returns as integers
_MIN_SHARE: Final = 0.5  # an image that covers this share of the page's width and height counts as the whole page
_LEVEL: Final = 0.01  # largest slope of the sides of an image that counts as unrotated
_LOOK_PX: Final = 16
_OPAQUE: Final = 255
_INSET_PX: Final = 0.01  # margin around a page drawn 1:1; without it, pdfium would stretch and blur the image
_CONFIG_VERSION: Final = 2


class _Drawer:
    """Answers requests with pdfium and one open PDF."""

    def __init__(self, pdfium: Any, file: int, canvas: int) -> None:
        self._pdfium, self._canvas = pdfium, canvas
        self._data = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
        self._handle: Any = None
        self._form: Any = None
        self._page: tuple[int, Any] | None = None
        self._text: PageText | None = None
        self._opened = ExitStack()

    def open(self) -> str:
        """Open the file and count its pages."""
        pdfium = self._pdfium
        start = ctypes.c_char.from_buffer(self._data)
        self._handle = pdfium.FPDF_LoadMemDocument64(ctypes.addressof(start), len(self._data), None)
        if not self._handle:
            secret = pdfium.FPDF_GetLastError() in {pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY}
            raise RequestFailed("password" if secret else "damaged")
        if pdfium.FPDF_GetFormType(self._handle) != pdfium.FORMTYPE_NONE:
            # Needed to draw form fields, which are not part of the page's content.
            self._form_info = pdfium.FPDF_FORMFILLINFO(version=2)
            self._form = pdfium.FPDFDOC_InitFormFillEnvironment(self._handle, self._form_info)
        return pack("pages", pdfium.FPDF_GetPageCount(self._handle))

    def size(self, number: int) -> str:
        """Measure a page in points, without parsing its content."""
        size = self._pdfium.FS_SIZEF()
        if not self._pdfium.FPDF_GetPageSizeByIndexF(self._handle, number - 1, size):
            raise RequestFailed("damaged_page", number)
        width, height = float(size.width), float(size.height)
        if not (0 < width < _LARGEST_SIDE and 0 < height < _LARGEST_SIDE):
            raise RequestFailed("no_size")
        return pack("points", width, height)

    def image(self, number: int, dpi: int, max_pixels: int) -> str:
        """Measure a page in pixels of its only image; 0 0 for other pages."""
        page = self._load(number)
        self._check_images(page, max_pixels)
        across, down = self._size_in_image_pixels(page)
        if across * _POINTS_PER_INCH < dpi * self._pdfium.FPDF_GetPageWidthF(page) and not self._is_opaque(page):
            across = down = 0.0
        return pack("image", across, down)

    def draw(self, number: int, width: int, height: int, max_pixels: int, exact: int) -> str:
        """Draw one page into the shared memory CANVAS."""
        page = self._load(number)
        try:
            self._check_images(page, max_pixels)
            with mmap.mmap(self._canvas, width * height * _BYTES_PER_PIXEL) as canvas:
                self._draw_on(page, canvas, 0, (width, height), exact=bool(exact))
        finally:
            self._close_page()
        return pack("drawn")

    def text(self, number: int) -> str:
        """Count a page's characters; the page stays open for `copy`."""
        self._close_page()
        self._text = PageText(self._pdfium, self._load(number))
        self._opened.callback(self._text.close)
        return pack("characters", self._text.count)

    def copy(self, width: int, height: int, small_width: int, small_height: int, max_pixels: int) -> str:
        """Write the text that `text` opened to the shared memory CANVAS, then a small gray drawing of the page."""
        if self._text is None or self._page is None:
            raise RequestFailed("no_text")
        (_, page), copier = self._page, self._text
        if small_width and small_height:
            self._check_images(page, max_pixels)
        characters_bytes = room_bytes(copier.count)
        with mmap.mmap(self._canvas, characters_bytes + small_width * small_height) as canvas:
            counts = copier.copy(canvas)
            if small_width and small_height:
                self._draw_on(page, canvas, characters_bytes, (small_width, small_height), gray=True)
        return pack("copied", *counts, *copier.to_pixels(width, height))

    def _load(self, number: int) -> Any:
        """Open a page; it stays open until it is drawn or another is requested, because parsing takes time."""
        if self._page is None or self._page[0] != number:
            self._close_page()
            self._page = number, self._opened.enter_context(self._open_page(number))
        return self._page[1]

    def _close_page(self) -> None:
        self._page = self._text = None
        self._opened.close()

    @contextmanager
    def _open_page(self, number: int) -> Iterator[Any]:
        pdfium, form = self._pdfium, self._form
        page = pdfium.FPDF_LoadPage(self._handle, number - 1)
        if not page:
            raise RequestFailed("damaged_page", number)
        try:
            if form:
                pdfium.FORM_OnAfterLoadPage(page, form)
            yield page
        finally:
            if form:
                pdfium.FORM_OnBeforeClosePage(page, form)
            pdfium.FPDF_ClosePage(page)

    def _only_image(self, page: Any) -> Any:
        pdfium, only = self._pdfium, None
        for item, kind, depth, *_ in objects_of(pdfium, page):
            mode = pdfium.FPDFTextObj_GetTextRenderMode(item) if kind == pdfium.FPDF_PAGEOBJ_TEXT else None
            if kind == pdfium.FPDF_PAGEOBJ_IMAGE and depth == 0 and only is None:
                only = item
            elif kind != pdfium.FPDF_PAGEOBJ_FORM and mode != pdfium.FPDF_TEXTRENDERMODE_INVISIBLE:
                return None
        return only

    def _size_in_image_pixels(self, page: Any) -> tuple[float, float]:
        """The displayed page's width and height in pixels of its only image; 0, 0 without one."""
        image, matrix = self._only_image(page), self._pdfium.FS_MATRIX()
        if image is None or not self._pdfium.FPDFPageObj_GetMatrix(image, matrix):
            return 0.0, 0.0
        # Map three corners of the image, its origin and both neighbours, to shares of the displayed page's sides.
        offsets = (0, 0), (matrix.a, matrix.b), (matrix.c, matrix.d)
        points = [(matrix.e + x, matrix.f + y) for x, y in offsets]
        (left, top), *ends = (displayed(self._pdfium, page, (1, 1), point, _UNITS) for point in points)
        (ax, ay), (bx, by) = ((abs(x - left), abs(y - top)) for x, y in ends)
        width, height = self._pixel_size(image)
        if ax < ay:
            # The page is displayed rotated by 90 or 270 degrees: swap the image's edges and sides.
            (ax, ay), (bx, by), (width, height) = (bx, by), (ax, ay), (height, width)
        if min(ax, by) < _MIN_SHARE or max(ay, bx) > _LEVEL * min(ax, by):
            return 0.0, 0.0
        return width / ax, height / by

    def _is_opaque(self, page: Any) -> bool:
        """Whether no pixel of the page is half-transparent; an image with a transparency mask has such pixels."""
        look = (ctypes.c_ubyte * (_LOOK_PX * _LOOK_PX * _BYTES_PER_PIXEL))()
        pdfium, stride = self._pdfium, _LOOK_PX * _BYTES_PER_PIXEL
        bitmap = pdfium.FPDFBitmap_CreateEx(_LOOK_PX, _LOOK_PX, pdfium.FPDFBitmap_BGRA, ctypes.addressof(look), stride)
        pdfium.FPDF_RenderPageBitmap(bitmap, page, 0, 0, _LOOK_PX, _LOOK_PX, 0, pdfium.FPDF_RENDER_LIMITEDIMAGECACHE)
        pdfium.FPDFBitmap_Destroy(bitmap)
        return set(look[_BYTES_PER_PIXEL - 1 :: _BYTES_PER_PIXEL]) <= {0, _OPAQUE}

    def _check_images(self, page: Any, max_pixels: int) -> None:
        """Raise RequestFailed for an image of too many pixels: a few bytes may decompress to gigabytes."""
        for item, kind, *_ in objects_of(self._pdfium, page):
            width, height = self._pixel_size(item) if kind == self._pdfium.FPDF_PAGEOBJ_IMAGE else (0, 0)
            if width * height > max_pixels:
                raise RequestFailed("large_image", width, height)

    def _pixel_size(self, image: Any) -> tuple[int, int]:
        """Width and height of an image in pixels; 0, 0 if unknown."""
        width, height = ctypes.c_uint(), ctypes.c_uint()
        self._pdfium.FPDFImageObj_GetImagePixelSize(image, width, height)
        return width.value, height.value

    def _draw_on(
        self, page: Any, canvas: mmap.mmap, at: int, size: tuple[int, int], *, gray: bool = False, exact: bool = False
    ) -> None:
        """Draw the page on a white background into the shared memory `canvas`, from its byte `at`."""
        pdfium, (width, height) = self._pdfium, size
        start = ctypes.c_char.from_buffer(canvas, at)
        kind, stride = (pdfium.FPDFBitmap_Gray, width) if gray else (pdfium.FPDFBitmap_BGRx, width * _BYTES_PER_PIXEL)
        bitmap = pdfium.FPDFBitmap_CreateEx(width, height, kind, ctypes.addressof(start), stride)
        pdfium.FPDFBitmap_FillRect(bitmap, 0, 0, width, height, 0xFFFFFFFF)
        flags = pdfium.FPDF_ANNOT | pdfium.FPDF_RENDER_LIMITEDIMAGECACHE
        how = (0, 0, width, height, 0, flags)
        if exact:
            across = (width - 2 * _INSET_PX) / pdfium.FPDF_GetPageWidthF(page)
            down = (height - 2 * _INSET_PX) / pdfium.FPDF_GetPageHeightF(page)
            inset = pdfium.FS_MATRIX(across, 0, 0, down, _INSET_PX, _INSET_PX)
            pdfium.FPDF_RenderPageBitmapWithMatrix(bitmap, page, inset, pdfium.FS_RECTF(0, 0, width, height), flags)
        else:
            pdfium.FPDF_RenderPageBitmap(bitmap, page, *how)
        if self._form:
            pdfium.FPDF_FFLDraw(self._form, bitmap, page, *how)
        pdfium.FPDFBitmap_Destroy(bitmap)


def main() -> None:
    """Serve the parent until it closes the connection."""
    file, canvas = apply_limits()
    # Importing pypdfium2 itself, rather than its raw bindings, would double this process's start time.
    from pypdfium2_raw import bindings

    bindings.FPDF_InitLibraryWithConfig(bindings.FPDF_LIBRARY_CONFIG(version=_CONFIG_VERSION))
    drawer = _Drawer(bindings, file, canvas)
    words = ("open", "size", "image", "draw", "text", "copy")
    serve({word: getattr(drawer, word) for word in words}, FONT_FOLDERS)


if __name__ == "__main__":
    main()
    # Exit without the slow clean-up of Python and pdfium; the system frees everything.
    os._exit(0)
