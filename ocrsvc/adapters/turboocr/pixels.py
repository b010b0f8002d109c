"""Bare pixels, as TurboOCR takes them, as an image file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from werkzeug.datastructures import Headers

from ocrsvc.adapters.turboocr.failures import Coded
from ocrsvc.http.field_values import as_text
from ocrsvc.serving.memory_budget import Share

MAX_SIDE_PX: Final = 16_384
HEADERS: Final = {"width": "X-Width", "height": "X-Height", "channels": "X-Channels"}
"""Where TurboOCR 2 has the size, by the name of the query parameter that came after."""

_COLOUR: Final = 3
_WHOLE: Final = re.compile(r"[0-9]{1,9}")


def read_size(parameters: Mapping[str, object], headers: Headers) -> tuple[int, int, int]:
    """Width, height and channels of the query, or of the headers. Raises Coded."""
    width, height, channels = (_size(name, parameters, headers) for name in HEADERS)
    if width is None or height is None:
        raise Coded("MISSING_DIMENSIONS", "Missing width and height, or the headers X-Width and X-Height")
    return width, height, _COLOUR if channels is None else channels


def _size(name: str, parameters: Mapping[str, object], headers: Headers) -> int | None:
    in_query, in_header = as_text(parameters.get(name, "")).strip(), headers.get(HEADERS[name], "").strip()
    for text in (in_query, in_header):
        if text and not _WHOLE.fullmatch(text):
            raise Coded("INVALID_HEADER", f"Invalid {name} or {HEADERS[name]} header value")
    if in_query and in_header and int(in_query) != int(in_header):
        raise Coded("DIMENSION_CONFLICT", f"The parameter {name} and the header {HEADERS[name]} differ")
    return int(in_query or in_header) if in_query or in_header else None


def check_size(width: int, height: int, channels: int) -> int:
    """How many bytes the pixels must be. Raises Coded."""
    if width <= 0 or height <= 0 or channels not in {1, _COLOUR}:
        raise Coded("INVALID_DIMENSIONS", "Invalid dimensions or channels")
    if max(width, height) > MAX_SIDE_PX:
        raise Coded("DIMENSIONS_TOO_LARGE", f"Dimensions {width}x{height} exceed maximum of {MAX_SIDE_PX}")
    return width * height * channels


def to_image_file(pixels: bytes, size: tuple[int, int, int], share: Share) -> bytes:
    """The pixels as PNM; the share pays for it. Raises Coded, and what the share does."""
    size_bytes = check_size(*size)
    if len(pixels) != size_bytes:
        raise Coded("BODY_SIZE_MISMATCH", f"Body size mismatch: expected {size_bytes} bytes, got {len(pixels)}")
    width, height, channels = size
    with share.holding(size_bytes):
        share.take(size_bytes)
        header = b"P%d\n%d %d\n255\n" % (6 if channels == _COLOUR else 5, width, height)
        return header + (swap_colours(pixels) if channels == _COLOUR else pixels)


def swap_colours(pixels: bytes) -> bytes:
    """Blue, green, red to red, green, blue, or back."""
    swapped = np.empty((len(pixels) // 3, 3), np.uint8)
    # numpy lets other threads run meanwhile.
    swapped[:] = np.frombuffer(pixels, np.uint8).reshape(-1, 3)[:, ::-1]
    return swapped.tobytes()
