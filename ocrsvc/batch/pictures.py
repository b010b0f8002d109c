"""Small pictures of single pages, made from their sources again: bounded in time, memory and bytes."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import cv2
import numpy as np

from ocrsvc.batch.pages import Load, SourceFile
from ocrsvc.errors import BodyTooLarge, DeadlineExceeded, OcrsvcError
from ocrsvc.imaging.codecs.decode import PixelLimits, decode_pixels
from ocrsvc.imaging.codecs.encoded_image import EncodedImage
from ocrsvc.imaging.document import open_document
from ocrsvc.records import Image

SIDE_PX: Final = 360
MOST_BYTES: Final = 40_000
"""Of one picture."""
TIME_S: Final = 10.0
"""For all of them."""
_MOST_FILE_BYTES: Final = 32_000_000
_MOST_PIXELS: Final = 40_000_000
_MOST_COLOUR_PIXELS: Final = 8_000_000
_DPI: Final = 72
"""The least at which pages of a PDF are drawn."""
_QUALITIES: Final = (75, 45)


class Picture(NamedTuple):
    """A page as a JPEG for people, with its size; `missing` says why there is none."""

    data: str = ""
    width: int = 0
    height: int = 0
    missing: str = ""


def make_pictures(
    pages: Sequence[tuple[SourceFile, int]], load: Load, clock: Callable[[], float] = time.monotonic
) -> list[Picture]:
    """The picture of each page, from 1, or why there is none; returns when the time is over, whatever hangs."""
    made: list[Picture] = []
    end_s = clock() + TIME_S

    def check() -> None:
        if clock() >= end_s:
            raise DeadlineExceeded("The time for pictures is over.")

    def make() -> None:
        for file, number in pages:
            if clock() >= end_s:
                return
            made.append(_make(load, file, number, check))

    # An archive may be searched for long, and a file system of another machine may not answer at all.
    thread = threading.Thread(target=make, name="pictures", daemon=True)
    thread.start()
    thread.join(TIME_S)
    found = list(made)
    return found + [Picture(missing="there was no time for it")] * (len(pages) - len(found))


def _make(load: Load, file: SourceFile, number: int, check: Callable[[], None]) -> Picture:
    if file.size > _MOST_FILE_BYTES:
        return Picture(missing="the file is too large")
    try:
        with closing(open_document(load(file), PixelLimits(_MOST_PIXELS), _DPI, check, _take)) as document:
            page = document.open(number, gray=False, check=check, take=_take)
            if isinstance(page, EncodedImage):
                page = decode_pixels(page, gray=page.width * page.height > _MOST_COLOUR_PIXELS)
            return _encode(page)
    except (OcrsvcError, OSError, MemoryError, ValueError) as error:
        return Picture(missing=getattr(error, "code", "") or type(error).__name__)


def _take(size_bytes: int) -> None:
    if size_bytes > 4 * _MOST_PIXELS:
        raise BodyTooLarge("This page is too large for a picture.")


def _encode(image: Image) -> Picture:
    pixels, scale = image.pixels, SIDE_PX / max(image.pixels.shape[:2])
    if scale < 1:
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        pixels = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
    for quality in _QUALITIES:
        data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
        if len(data) <= MOST_BYTES:
            return Picture(base64.b64encode(data).decode("ascii"), pixels.shape[1], pixels.shape[0])
    return Picture(missing="it would be too large")
