"""Small pictures of single pages, made from their sources again: bounded in time, memory and bytes."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np

from ocrsvc.batch.pages import SourceFile
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


@dataclass(frozen=True, slots=True)
class Picture:
    """A page as a JPEG for people, with its size; `missing` says why there is none."""

    data: str = ""
    width: int = 0
    height: int = 0
    missing: str = ""


_TOO_LATE: Final = Picture(missing="there was no time for it")


class PictureMaker:
    """Makes pictures until the time for all of them is over."""

    def __init__(self, load: Callable[[SourceFile], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._load, self._clock = load, clock
        self._end_s = clock() + TIME_S

    def make(self, file: SourceFile, number: int) -> Picture:
        """The picture of one page, from 1, or why there is none; returns when the time is over, whatever hangs."""
        if self._clock() >= self._end_s:
            return _TOO_LATE
        if file.size > _MOST_FILE_BYTES:
            return Picture(missing="the file is too large")
        made: list[Picture] = []
        # An archive may be searched for long, and a file system of another machine may not answer at all.
        thread = threading.Thread(target=lambda: made.append(self._make(file, number)), name="picture", daemon=True)
        thread.start()
        thread.join(max(0.0, self._end_s - self._clock()))
        if not made:
            self._end_s = self._clock()
        return made[0] if made else _TOO_LATE

    def _make(self, file: SourceFile, number: int) -> Picture:
        try:
            data = self._load(file)
            with closing(open_document(data, PixelLimits(_MOST_PIXELS), _DPI, self._check, _take)) as document:
                page = document.open(number, gray=False, check=self._check, take=_take)
                if isinstance(page, EncodedImage):
                    page = decode_pixels(page, gray=page.width * page.height > _MOST_COLOUR_PIXELS)
                return _encode(page)
        except (OcrsvcError, OSError, MemoryError, ValueError) as error:
            return Picture(missing=getattr(error, "code", "") or type(error).__name__)

    def _check(self) -> None:
        if self._clock() >= self._end_s:
            raise DeadlineExceeded("The time for pictures is over.")


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
