"""Hostile PDFs with text of their own: many letters, tiny ones, and forms that draw each other."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from hostile_files import HostileFile, deflated, pdf_of_pages, stream

_LETTERS: Final = b"/Resources<</Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"


def pdf_of_text(letters: int) -> bytes:
    """One page with so many letters of its own, thousands of them above each other."""
    line = b"(" + b"a b, " * 40 + b")Tj 0 -1 Td\n"
    again = b"BT /F 8 Tf 1 0 0 1 20 820 Tm\n" + line * 800 + b"ET\n"
    content = deflated(again, max(1, letters // 160_000))
    return pdf_of_pages(1, _LETTERS + b"/Contents 3 0 R", stream(b"/Filter/FlateDecode", content))


def _pdf_of_tiny_text(letters: int) -> bytes:
    """Letters of a thousandth of a point, each placed by itself."""
    content = b"BT /F .001 Tf 20 820 Td\n" + b"(a)Tj .01 -.01 Td\n" * letters + b"ET\n"
    return pdf_of_pages(1, _LETTERS + b"/Contents 3 0 R", stream(b"/Filter/FlateDecode", zlib.compress(content)))


def _pdf_of_nested_forms(depth: int) -> bytes:
    """Forms that draw the next one ten times each; the last has letters."""
    form = b"/Type/XObject/Subtype/Form/BBox[0 0 595 842]"
    inner = [
        stream(form + b"/Resources<</XObject<</X %d 0 R>>>>" % (5 + at), b"/X Do\n" * 10) for at in range(depth - 1)
    ]
    last = stream(form + _LETTERS, b"BT /F 9 Tf 50 50 Td(letters)Tj ET")
    page = b"/Resources<</XObject<</X 4 0 R>>>>/Contents 3 0 R"
    return pdf_of_pages(1, page, stream(b"", b"/X Do"), *inner, last)


TEXT_LAYERS: Final[Mapping[str, HostileFile]] = {
    "pdf_text": HostileFile(pdf_of_text, 10_000_000, 1_000),
    "pdf_tiny_text": HostileFile(_pdf_of_tiny_text, 1_000_000, 1_000),
    "pdf_nested_forms": HostileFile(_pdf_of_nested_forms, 7, 3),
}
