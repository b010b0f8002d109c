"""Decodes an uploaded file into an image, after its header was checked against the limits.

Sniff the format, read the header, check it against the limits, and only then decode, flatten and turn upright. What is
read: JPEG, PNG, WebP, BMP, GIF, TIFF and binary PNM; of several frames or pages, the first. A file that is cut off is
refused as damaged, because half a page read as if it were whole misleads; only a missing end mark is forgiven.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ocrsvc.errors import BrokenImage, ImageTooLarge, UnsupportedImage
from ocrsvc.imaging.codecs.bmp import open_bmp
from ocrsvc.imaging.codecs.encoded_image import EncodedImage, broken
from ocrsvc.imaging.codecs.exif import turn_upright
from ocrsvc.imaging.codecs.gif_and_tiff import open_gif, open_tiff
from ocrsvc.imaging.codecs.jpeg import open_jpeg
from ocrsvc.imaging.codecs.pixel_depth import flatten
from ocrsvc.imaging.codecs.png import open_png
from ocrsvc.imaging.codecs.pnm import open_pnm
from ocrsvc.imaging.codecs.webp import open_webp
from ocrsvc.records import Image

FORMATS: tuple[tuple[re.Pattern[bytes], Callable[[bytes], EncodedImage]], ...] = (
    (re.compile(rb"\xff\xd8(?:\xff|$)"), open_jpeg),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), open_png),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), open_webp),
    (re.compile(rb"GIF8[79]a"), open_gif),
    (re.compile(rb"II[*+]\0|MM\0[*+]"), open_tiff),
    (re.compile(rb"BM.{12}[\x0c-\x7c]\0\0\0", re.DOTALL), open_bmp),
    (re.compile(rb"P[456][ \t\r\n#]"), open_pnm),
)
SUPPORTED = "JPEG, PNG, WebP, BMP, GIF, TIFF and binary PNM"

UNSUPPORTED_FORMATS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"%PDF-"), "a PDF"),
    (re.compile(rb"....ftyp(?:avif|avis)", re.DOTALL), "an AVIF image"),
    (re.compile(rb"....ftyp(?:hei|hev|mif1|msf1)", re.DOTALL), "a HEIC image"),
    (re.compile(rb"....ftyp", re.DOTALL), "an MP4 or QuickTime file"),
    (re.compile(rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"), "a JPEG 2000 image"),
    (re.compile(rb"\0\0\0\x0cJXL |\xff\x0a"), "a JPEG XL image"),
    (re.compile(rb"\0\0[\x01\x02]\0"), "a Windows icon"),
    (re.compile(rb"P[123F7f][ \t\r\n]"), "a PNM image in a form that is not read"),
    (re.compile(rb"8BPS"), "a Photoshop document"),
    (re.compile(rb"%!PS"), "a PostScript document"),
    (re.compile(rb"PK\x03\x04"), "a ZIP archive"),
    (re.compile(rb"\x1f\x8b"), "gzip data"),
    (
        re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)?(?:<!DOCTYPE svg|<svg)", re.DOTALL | re.IGNORECASE),
        "an SVG",
    ),
    (re.compile(rb"\s*<(?:!doctype html|html)", re.IGNORECASE), "an HTML page"),
    (re.compile(rb"\s*[\[{]"), "JSON"),
    (re.compile(rb"[\t\r\n\x20-\x7e]+$"), "plain text"),
)
SNIFFED_BYTES = 512


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """How many pixels a header may declare before anything is decoded.

    Attributes:
        max_pixels: Width times height, for every format (OCRSVC_MAX_PIXELS).
        by_format: Lower limits for single formats, by lower-case name (OCRSVC_FORMAT_MAX_PIXELS): a few bytes of PNG,
            WebP, GIF or TIFF can declare a gigapixel.
        max_side: Longest side in pixels; the formats' own and the decoders' limits lie here.
    """

    max_pixels: int
    by_format: Mapping[str, int] = field(default_factory=dict)
    max_side: int = 65_535


def decode(data: bytes | memoryview, limits: PixelLimits, *, gray: bool) -> Image:
    """The first image in `data`, upright, over an opaque background.

    Args:
        data: The whole file.
        limits: What the header may declare.
        gray: Colour is not needed; files without colour come back gray either way.

    Raises:
        UnsupportedImage: Not a format that is read.
        ImageTooLarge: The header declares more than `limits` allow; nothing was decoded.
        BrokenImage: Empty, cut off or damaged.
    """
    return decode_pixels(open_encoded_image(data, limits), gray=gray)


def open_encoded_image(data: bytes | memoryview, limits: PixelLimits) -> EncodedImage:
    """The file with its header read and checked against the limits. Raises what `decode` raises; see there."""
    raw = bytes(data)
    encoded = _opener_of(raw)(raw)
    check_size(encoded, limits)
    return encoded


def open_without_pillow(data: bytes, limits: PixelLimits) -> EncodedImage | None:
    """As `open_encoded_image`, where code of our own reads the header; None for GIF and TIFF, which Pillow reads.

    For processes that must survive whatever a library does with a file, and so decode none.
    """
    return None if _opener_of(data) in (open_gif, open_tiff) else open_encoded_image(data, limits)


def decode_pixels(encoded: EncodedImage, *, gray: bool) -> Image:
    """Decode, flatten and turn upright; in the calling thread, without the GIL where OpenCV decodes.

    Raises:
        BrokenImage: Cut off or damaged.
    """
    gray = gray or encoded.gray
    # Without a name for what comes in between, which would keep it until the end.
    return Image(turn_upright(flatten(encoded.read(gray), gray=gray), encoded.orientation), encoded.format)


def no_bytes() -> BrokenImage:
    """What is wrong with a file that is empty."""
    return BrokenImage("The image has no bytes.", "Send the content of an image file.")


def _opener_of(raw: bytes) -> Callable[[bytes], EncodedImage]:
    if not raw:
        raise no_bytes()
    for pattern, open_encoded_image in FORMATS:
        if pattern.match(raw):
            return open_encoded_image
    raise UnsupportedImage(
        f"This is {_name_unsupported(raw[:SNIFFED_BYTES])}.", f"Send one of: {SUPPORTED}; PDF where documents are read."
    )


def _name_unsupported(head: bytes) -> str:
    for pattern, name in UNSUPPORTED_FORMATS:
        if pattern.match(head):
            return name
    return f"no image format that is known here (it begins with the bytes {head[:8].hex(' ')})"


def check_size(encoded: EncodedImage, limits: PixelLimits) -> None:
    """Raises ImageTooLarge when the header declares more than the limits allow, BrokenImage for an empty image."""
    name, width, height = encoded.format.upper(), encoded.width, encoded.height
    if not width or not height:
        raise broken(name, f"declares {width} x {height} pixels, so there is nothing to read")
    if max(width, height) > limits.max_side:
        raise ImageTooLarge(
            f"This {name} declares {width} x {height} pixels; no side may be longer than {limits.max_side}.",
            "Send a smaller image or cut it into pages.",
        )
    _check_area(encoded, limits)


def _check_area(encoded: EncodedImage, limits: PixelLimits) -> None:
    own = limits.by_format.get(encoded.format)
    limit = limits.max_pixels if own is None else min(own, limits.max_pixels)
    area = encoded.width * encoded.height
    if area > limit:
        setting = "OCRSVC_FORMAT_MAX_PIXELS" if own == limit else "OCRSVC_MAX_PIXELS"
        raise ImageTooLarge(
            f"This {encoded.format.upper()} declares {encoded.width} x {encoded.height} = {area} pixels; the limit is "
            f"{limit} ({setting}).",
            "Send a smaller image, or ask the operator to raise the limit.",
        )
