"""The child process that adds recognized text to the pages of one PDF.

    python -m ocrsvc.formats.pdf.text_layer_child PARENT MEMORY FILE_BYTES FILE TEXT RESULT

FILE, TEXT and RESULT are file descriptors. TEXT holds a line of JSON per page: its number, its width and height in
drawn pixels, and the lines of its `PageText`. The answer to `lay` is `written`, when RESULT holds the new PDF.

qpdf is used because it keeps everything that it does not know. pdfium, which draws pages, would rewrite their resources
and drop those that seem unused, such as fonts that only a form on the page uses.
"""

import codecs
import os
import zlib
from itertools import count
from typing import Any, Final

import orjson

from ocrsvc.formats.pdf.font import FontCodes, font_parts
from ocrsvc.formats.pdf.text_content import PageFrame, frame_of, page_content
from ocrsvc.system.child_program import RequestFailed, apply_limits, pack, serve

_FONT: Final = "OcrText"
# Raised for PDFs with objects of wrong types, or with too many objects.
_WRONG: Final = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
_DEEPEST: Final = 64
_INHERITED: Final = ("/MediaBox", "/CropBox", "/Rotate", "/Resources")


class _Layers:
    """Adds text to one open PDF with qpdf."""

    def __init__(self, pikepdf: Any, file: int) -> None:
        self._pikepdf = pikepdf
        self._pdf = pikepdf.open(os.fdopen(os.dup(file), "rb"), suppress_warnings=True)
        self._pages = self._pdf.pages
        self._font = self._pdf.make_indirect(pikepdf.Dictionary())
        self._codes = FontCodes()

    def lay(self, number: int, width: int, height: int, lines: list[Any]) -> None:
        """Add recognized lines to page `number` (from 1). Their boxes are in pixels of a page of `width` x `height`."""
        if not (lines and width and height and 1 <= number <= len(self._pages)):
            return
        page = self._pages[number - 1].obj
        inherited = self._inherited(page)
        frame = _frame_of(inherited)
        name = self._add_font(page, inherited.get("/Resources"))
        content = page_content(lines, frame.to_points(width, height), name.encode(), self._codes)
        self._begin_with(page, zlib.compress(content, 9))

    def save(self, result: int) -> None:
        """Write the PDF to the open file descriptor `result`."""
        self._complete_font()
        how = {"object_stream_mode": self._pikepdf.ObjectStreamMode.preserve}
        if self._pdf.is_encrypted:
            # Keep the encryption and its restrictions; this needs random numbers and recompresses streams.
            how |= {"encryption": True}
        else:
            # Streams keep their compression.
            as_packed = self._pikepdf.StreamDecodeLevel.none
            how |= {"compress_streams": False, "stream_decode_level": as_packed, "deterministic_id": True}
        with os.fdopen(os.dup(result), "w+b", buffering=1 << 20) as output:
            self._pdf.save(output, preserve_pdfa=False, fix_metadata_version=False, **how)

    def _inherited(self, page: Any) -> dict[str, Any]:
        inherited: dict[str, Any] = {}
        node = page
        for _ in range(_DEEPEST):
            for key in _INHERITED:
                if key not in inherited and key in node:
                    inherited[key] = node[key]
            node = node.get("/Parent")
            if not isinstance(node, self._pikepdf.Dictionary):
                break
        return inherited

    def _add_font(self, page: Any, resources: Any) -> str:
        """Add the font to a copy of the page's resources and return its name there."""
        dictionary = self._pikepdf.Dictionary
        own = dictionary(resources) if isinstance(resources, dictionary) else dictionary()
        fonts = own.get("/Font")
        own_fonts = dictionary(fonts) if isinstance(fonts, dictionary) else dictionary()
        names = (f"{_FONT}{number or ''}" for number in count())
        name = next(name for name in names if f"/{name}" not in own_fonts)
        own_fonts[f"/{name}"] = self._font
        own["/Font"] = own_fonts
        page["/Resources"] = own
        return name

    def _begin_with(self, page: Any, content: bytes) -> None:
        """Prepend content to a page: its own content may change the coordinates, which displaces appended content."""
        pikepdf, before = self._pikepdf, page.get("/Contents")
        rest = [before] if isinstance(before, pikepdf.Stream) else []
        if isinstance(before, pikepdf.Array):
            rest = list(before)
        page["/Contents"] = pikepdf.Array([self._packed(content), *rest])

    def _complete_font(self) -> None:
        parse, parts = self._pikepdf.Object.parse, font_parts(self._codes)
        letters, description = parse(parts.letters), parse(parts.description)
        description["/FontFile2"] = self._packed(parts.file, Length1=parts.file_bytes)
        letters["/FontDescriptor"] = self._pdf.make_indirect(description)
        letters["/CIDToGIDMap"] = self._packed(parts.to_glyph)
        font = parse(parts.font)
        font["/DescendantFonts"] = self._pikepdf.Array([self._pdf.make_indirect(letters)])
        font["/ToUnicode"] = self._packed(parts.to_unicode)
        for key in font.keys():  # noqa: SIM118  not a dict
            self._font[key] = font[key]

    def _packed(self, content: bytes, **more: Any) -> Any:
        return self._pdf.make_stream(content, Filter=self._pikepdf.Name.FlateDecode, **more)


def _frame_of(inherited: dict[str, Any]) -> PageFrame:
    media, crop = (_numbers_of(inherited.get(key, ())) for key in ("/MediaBox", "/CropBox"))
    (turn,) = _numbers_of([inherited.get("/Rotate", 0)]) or [0.0]
    return frame_of(media, crop, int(turn))


def _numbers_of(values: Any) -> list[float]:
    """Convert an array to numbers; empty if any item is no number, because pdfium ignores such an array, too."""
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        return []


def main() -> None:
    """Answer the parent process's requests until it closes the connection."""
    file, text, result = apply_limits()
    import pikepdf

    # Load this codec before `serve` starts the sandbox, in which Python can no longer open the codec's file.
    codecs.lookup("utf-16-be")

    def lay() -> str:
        try:
            layers = _Layers(pikepdf, file)
            os.lseek(text, 0, os.SEEK_SET)
            with os.fdopen(os.dup(text), "rb") as pages:
                for page in pages:
                    layers.lay(*orjson.loads(page))
            layers.save(result)
        except (pikepdf.PdfError, *_WRONG) as error:
            # The file is damaged or needs a password; the parent writes the message.
            raise RequestFailed("damaged") from error
        return pack("written")

    # qpdf reads random numbers for encrypted files.
    serve({"lay": lay}, ("/dev/urandom",))


if __name__ == "__main__":
    main()
    # Exit without the slow clean-up of Python; the system frees everything.
    os._exit(0)
