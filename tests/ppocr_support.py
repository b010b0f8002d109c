"""Pages of tests/pages, and what an engine of ppocr reads of them."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.contract import Handle
from ocrsvc.errors import DeadlineExceeded
from ocrsvc.results import Box, Check, Image, Page, Pixels, ReadOptions, ReadTask

PAGES = Path(__file__).parent / "pages"
LINE = "The library closes at 15:00 today."  # what stands on line.png


def load(name: str) -> Pixels:
    return np.asarray(cv2.imread(str(PAGES / name)), np.uint8)


def text_of(name: str) -> str:
    return (PAGES / f"{name}.txt").read_text("utf-8")


def read(handle: Handle, pixels: Pixels, options: ReadOptions | None = None, **more: Any) -> Page:
    """A page that is read; `more` are read options by name."""
    (page,) = handle.read([ReadTask(Image(pixels, "png"), options or ReadOptions(**more))])
    assert isinstance(page, Page)
    return page


def give_up_at(call: int) -> Check:
    """A check that raises from that call on."""
    calls = itertools.count(1)

    def check() -> None:
        if next(calls) >= call:
            raise DeadlineExceeded("Too late.")

    return check


def rectangle(left: float, top: float, right: float, bottom: float) -> NDArray[np.float32]:
    """(4, 2) the corners, clockwise from the upper left one."""
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def frame_of(box: Box | Iterable[object]) -> NDArray[np.float64]:
    """(4,) left, top, right and bottom of the frame around a box."""
    corners = np.array(box)
    return np.concatenate([corners.min(axis=0), corners.max(axis=0)])
