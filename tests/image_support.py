"""Small images for tests, as pixels and as files, and boxes of lines."""

import io
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocrsvc.results import Box, Pixels


def encoded(pixels: NDArray[Any], suffix: str = ".png", how: Sequence[int] = ()) -> bytes:
    """Encode pixels in the format of this suffix; `how` are OpenCV's encoder flags."""
    return cv2.imencode(suffix, pixels, how)[1].tobytes()


def saved(picture: Image.Image, kind: str, **how: Any) -> bytes:
    """Encode a picture with Pillow in the format `kind`."""
    file = io.BytesIO()
    picture.save(file, kind, **how)
    return file.getvalue()


def decoded(data: bytes, flags: int = cv2.IMREAD_UNCHANGED) -> Pixels:
    return np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), flags), np.uint8)


def png(width: int = 64, height: int = 32, shade: int = 200, suffix: str = ".png") -> bytes:
    """A file of one shade of gray; different sizes and shades give different bytes."""
    return encoded(np.full((height, width), shade, np.uint8), suffix)


def noise(seed: int, *shape: int) -> Pixels:
    """Random pixels, 20 x 30 in colour by default, so that any displaced pixel is noticed."""
    return np.random.default_rng(seed).integers(0, 256, shape or (20, 30, 3), np.uint8)


def box(left: float, top: float, right: float, bottom: float) -> Box:
    """The corners of an upright rectangle, clockwise from the upper left."""
    return (left, top), (right, top), (right, bottom), (left, bottom)
