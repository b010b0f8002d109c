"""Helpers that load tests/pages and read them with the ppocr engine."""

import itertools
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.contract import Handle
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL
from ocrsvc.errors import DeadlineExceeded
from ocrsvc.results import Box, Check, Image, Page, Pixels, ReadOptions, ReadTask

PAGES = Path(__file__).parent / "pages"
LINE = "The library closes at 15:00 today."  # the text of line.png


def load(name: str) -> Pixels:
    return np.asarray(cv2.imread(str(PAGES / name)), np.uint8)


def text_of(name: str) -> str:
    return (PAGES / f"{name}.txt").read_text("utf-8")


def read(handle: Handle, pixels: Pixels, options: ReadOptions | None = None, **more: Any) -> Page:
    """Read one page; `more` are read options by name."""
    (page,) = handle.read([ReadTask(Image(pixels, "png"), options or ReadOptions(**more))])
    assert isinstance(page, Page)
    return page


def give_up_at(call: int) -> Check:
    """A check that raises DeadlineExceeded from its `call`th call on."""
    calls = itertools.count(1)

    def check() -> None:
        if next(calls) >= call:
            raise DeadlineExceeded("Too late.")

    return check


class WatchedSession:
    """A session whose runs block until `go_on` is set; counts runs, concurrent runs (`inside`) and their maximum."""

    device, provider, precision, batched, takes_pixels, input_format = "cpu", "none", "fp32", True, False, USUAL

    def __init__(self, go_on: threading.Event | None = None) -> None:
        self.metadata: dict[str, str] = {}
        self.inside = self.most = self.runs = 0
        self.entered, self.go_on = threading.Semaphore(0), go_on or threading.Event()

    def run(self, tensor: Any, _outputs: object = None) -> list[Any]:
        self.inside, self.runs = self.inside + 1, self.runs + 1
        self.most = max(self.most, self.inside)
        self.entered.release()
        assert self.go_on.wait(60.0)
        self.inside -= 1
        return [tensor[:, :1] if isinstance(tensor, np.ndarray) else tensor]


def rectangle(left: float, top: float, right: float, bottom: float) -> NDArray[np.float32]:
    """(4, 2) corners of a rectangle, clockwise from the top left."""
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def frame_of(box: Box | Iterable[object]) -> NDArray[np.float64]:
    """(4,) left, top, right and bottom of the bounding box of a quad."""
    corners = np.array(box)
    return np.concatenate([corners.min(axis=0), corners.max(axis=0)])
