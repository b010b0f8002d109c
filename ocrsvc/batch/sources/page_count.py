"""What a file is by its name and its first bytes, and how many pages a document has."""

from __future__ import annotations

from typing import Final

from ocrsvc.imaging.decode import FORMATS, PixelLimits
from ocrsvc.imaging.document import is_pdf, may_have_pages, open_document

HEAD_BYTES: Final = 64
"""What of a file says what it is."""
DOCUMENTS: Final = frozenset({"pdf", "tif", "tiff"})
IMAGES: Final = frozenset(
    {"jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "dib", "pnm", "pbm", "pgm", "ppm"}
    | {"avif", "heic", "heif", "jp2", "jpx", "jxl"}
)
"""Also formats that are not read here: such a file fails, and says so, where skipping it would hide it."""
_LIMITS: Final = PixelLimits(1 << 40)
_DPI: Final = 100


def extension_of(name: str) -> str:
    """What is behind a name's last dot, in lower case; "" where there is none."""
    base = name.rpartition("/")[2]
    stem, dot, extension = base.rpartition(".")
    return extension.lower() if dot and stem else ""


def is_image_name(name: str) -> bool:
    """Whether a file is an image or a document by its name."""
    extension = extension_of(name)
    return extension in IMAGES or extension in DOCUMENTS


def is_image_head(head: bytes) -> bool:
    """Whether a file is an image or a document by its first bytes."""
    return is_pdf(head) or any(pattern.match(head) for pattern, _ in FORMATS)


def kind_of(name: str) -> str:
    """What a file that is not planned is counted as."""
    extension = extension_of(name)
    return f".{extension[:16]}" if extension else "no extension"


def count_pages(data: bytes) -> int:
    """The pages of a file, those of a PDF found in a child process.

    Raises:
        BrokenImage, EncryptedDocument, TooManyPages: It cannot be opened.
        ResourcesExhausted: There is no process or memory for it.
    """
    if not may_have_pages(data):
        return 1
    document = open_document(data, _LIMITS, _DPI, lambda: None, lambda _bytes: None)
    try:
        return document.count
    finally:
        document.close()
