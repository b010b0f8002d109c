"""Decodes the first frame or page of a file into an upright, opaque image, after checking its header against limits.

Refuses truncated files, because half a page would pass for a whole one; only a missing end marker is accepted.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ocrsvc.errors import BrokenImage, ImageTooLarge, UnsupportedImage
from ocrsvc.imaging.codecs.bmp_pnm_webp import open_bmp, open_pnm, open_webp
from ocrsvc.imaging.codecs.encoded_image import EncodedImage, broken, flatten, turn_upright
from ocrsvc.imaging.codecs.gif_and_tiff import open_gif, open_tiff
from ocrsvc.imaging.codecs.heif import open_heif
from ocrsvc.imaging.codecs.jpeg import open_jpeg
from ocrsvc.imaging.codecs.png import open_png
from ocrsvc.results import Check, Image, no_check

FORMATS: tuple[tuple[re.Pattern[bytes], Callable[[bytes], EncodedImage]], ...] = (
    (re.compile(rb"\xff\xd8(?:\xff|$)"), open_jpeg),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), open_png),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), open_webp),
    (re.compile(rb"GIF8[79]a"), open_gif),
    (re.compile(rb"II[*+]\0|MM\0[*+]"), open_tiff),
    (re.compile(rb"BM.{12}[\x0c-\x7c]\0\0\0", re.DOTALL), open_bmp),
    (re.compile(rb"P[456][ \t\r\n#]"), open_pnm),
    (re.compile(rb"....ftyp(?:avi[fs]|hei[cmsx]|hev[cmsx]|mif[12]|msf1|miaf)", re.DOTALL), open_heif),
)
SUPPORTED = "JPEG, PNG, WebP, HEIC, AVIF, BMP, GIF, TIFF and binary PNM"

UNSUPPORTED_FORMATS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"%PDF-"), "a PDF"),
    (re.compile(rb"....ftyp", re.DOTALL), "an MP4 or QuickTime file"),
    (re.compile(rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"), "a JPEG 2000 image"),
    (re.compile(rb"\0\0\0\x0cJXL |\xff\x0a"), "a JPEG XL image"),
    (re.compile(rb"\0\0[\x01\x02]\0"), "a Windows icon"),
    (re.compile(rb"P[123F7f][ \t\r\n]"), "a PNM image in a form that is not read"),
    (re.compile(rb"8BPS"), "a Photoshop document"),
    (re.compile(rb"%!PS"), "a PostScript document"),
    (re.compile(rb"\x89PNG(?!\r\n)"), "a PNG whose line ends were lost on the way (with curl, use --data-binary)"),
    (re.compile(rb"PK\x03\x04.{26}\[Content_Types\]", re.DOTALL), "an Office document (save it as PDF)"),
    (re.compile(rb"PK\x03\x04"), "a ZIP archive"),
    (re.compile(rb"\x1f\x8b"), "gzip data"),
    (re.compile(rb"(?is)\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)?(?:<!DOCTYPE svg|<svg)"), "an SVG"),
    (re.compile(rb"\s*<(?:!doctype html|html)", re.IGNORECASE), "an HTML page"),
    (re.compile(rb"\s*[\[{]"), "JSON"),
    # Plain text in ASCII or UTF-8. Only the first bytes of a file are tested, so the last character may be incomplete.
    (
        re.compile(
            rb"(?:[\t\r\n\x20-\x7e]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})+"
            rb"(?:[\xe0-\xf4][\x80-\xbf]{0,2}|[\xc2-\xdf])?$"
        ),
        "plain text",
    ),
)
SNIFFED_BYTES = 512
_TINY_BYTES = 32  # an upload below this size is often a file name, sent instead of the file


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """Largest image that a header may declare; `by_format` has smaller pixel limits by format name, in lower case."""

    max_pixels: int
    by_format: Mapping[str, int] = field(default_factory=dict)
    max_side: int = 65_535  # limit of most formats and decoders


def decode(data: bytes | memoryview, limits: PixelLimits, *, gray: bool) -> Image:
    """Decode the first image of a file. Raises UnsupportedImage, ImageTooLarge (before decoding), BrokenImage."""
    return decode_pixels(open_encoded_image(data, limits), gray=gray)


def open_encoded_image(data: bytes | memoryview, limits: PixelLimits) -> EncodedImage:
    """Read the header of a file and check it against the limits. Raises as `decode` does."""
    raw = bytes(data)
    encoded = _opener_of(raw)(raw)
    check_size(encoded, limits)
    return encoded


def open_without_pillow(data: bytes, limits: PixelLimits) -> EncodedImage | None:
    """Like `open_encoded_image`, but returns None for GIF and TIFF: Pillow, which may crash, reads their headers."""
    return None if _opener_of(data) in (open_gif, open_tiff) else open_encoded_image(data, limits)


def decode_pixels(encoded: EncodedImage, *, gray: bool, check: Check = no_check) -> Image:
    """Decode and turn upright. Raises BrokenImage; for HEIC and AVIF UnsupportedImage and ResourcesExhausted."""
    gray = gray or encoded.gray
    # Nest the calls: a variable for an intermediate array would keep it in memory until the function returns.
    upright = turn_upright(flatten(encoded.read(gray, check), gray=gray), encoded.orientation)
    return Image(upright, encoded.format)


def no_bytes() -> BrokenImage:
    """Make the error for an empty file."""
    return BrokenImage("The file is empty.", "Send an image or a document.")


def _opener_of(raw: bytes) -> Callable[[bytes], EncodedImage]:
    if not raw:
        raise no_bytes()
    for pattern, opener in FORMATS:
        if pattern.match(raw):
            return opener
    head = raw[:SNIFFED_BYTES]
    unknown = f"no known image format (it begins with the bytes {head[:8].hex(' ')})"
    name = next((name for pattern, name in UNSUPPORTED_FORMATS if pattern.match(head)), unknown)
    hint = " With curl, file=@page.png sends a file; without @ it sends its name." if len(raw) < _TINY_BYTES else ""
    remedy = f"Send one of: {SUPPORTED}; or a PDF where the API reads documents, as POST /v1/ocr does.{hint}"
    raise UnsupportedImage(f"This is {name}.", remedy)


def check_size(encoded: EncodedImage, limits: PixelLimits) -> None:
    """Raise ImageTooLarge if the header declares more pixels than allowed, BrokenImage if it declares none."""
    name, width, height = encoded.format.upper(), encoded.width, encoded.height
    if not width or not height:
        raise broken(name, f"declares {width} x {height} pixels, so there is nothing to read")
    if max(width, height) > limits.max_side:
        raise ImageTooLarge(
            f"This {name} declares {width} x {height} pixels; no side may be longer than {limits.max_side}.",
            "Send a smaller image or cut it into pages.",
        )
    format_limit = limits.by_format.get(encoded.format)
    limit = limits.max_pixels if format_limit is None else min(format_limit, limits.max_pixels)
    if width * height > limit:
        setting = "OCRSVC_FORMAT_MAX_PIXELS" if limit == format_limit else "OCRSVC_MAX_PIXELS"
        raise ImageTooLarge(
            f"This {name} declares {width} x {height} = {width * height} pixels; the limit is {limit} ({setting}).",
            "Send a smaller image, or ask the operator to raise the limit.",
        )
