"""Checks of an engine with one page, for authors of engines: turned, gray, blank and tiny pages, and the deadline."""

import faulthandler
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.batch.human_readable import count_of
from ocrsvc.engines.contract import Handle
from ocrsvc.errors import DeadlineExceeded, EngineFailed
from ocrsvc.formats.boxes import Boxed, to_boxes, to_frames
from ocrsvc.imaging.geometry import turn, turn_points
from ocrsvc.results import Check, Image, Page, Pixels, ReadOptions, ReadTask, no_check

_OPTIONS: Final = ReadOptions(words=True, characters=True)
# A longer read ends the command and shows where the engine hangs.
_LONGEST_S: Final = 120.0
# Boxes are computed on shrunk or turned copies, so their corners may be off by rounding.
_SLACK_PX: Final = 1.0
# Lines with fewer characters are not compared: on a turned page, another line may be misread as the same text.
_COMPARED_CHARACTERS: Final = 4

Outcome = tuple[str, str, str]
"""A check's name, its result, and the first fault; either the result or the fault is empty."""


def check_reading(handle: Handle, pixels: Pixels) -> Iterator[Outcome]:
    """Warm an engine's handle up, read a page with text and copies of it, and yield the outcome of each check."""
    # If a library crashes the process, this prints the Python stack.
    faulthandler.enable()
    handle.warm_up()
    checks = ReadingChecks(handle, pixels)
    rows: list[tuple[str, Callable[[], str]]] = [("page as it is", checks.upright)]
    rows += [(f"page turned by {degrees}", partial(checks.turned, degrees)) for degrees in (90, 180, 270)]
    rows += [("page in gray", checks.gray)] if pixels.ndim == 3 else []
    rows += [("blank page", checks.blank), ("page of 1x1 pixel", checks.tiny), ("deadline", checks.deadline)]
    for name, check in rows:
        try:
            yield name, check(), ""
        except EngineFailed as fault:
            yield name, "", fault.detail


class ReadingChecks:
    """The checks of one engine handle. Each returns a short description of its result, or raises EngineFailed."""

    def __init__(self, handle: Handle, pixels: Pixels) -> None:
        self._handle, self._pixels, self._page = handle, pixels, Page(0, 0, 0, ())

    def upright(self) -> str:
        """Read the page as it is; other checks compare their results with this one."""
        began_s = time.monotonic()
        calls_s = [began_s]
        self._page = self._read_one(self._pixels, lambda: calls_s.append(time.monotonic()))
        calls_s.append(time.monotonic())
        if not self._page.lines:
            raise EngineFailed("no line is read: choose a page with text that this engine reads.")
        longest_s = max(after - before for before, after in pairwise(calls_s))
        words = sum(len(line.words or ()) for line in self._page.lines)
        read = f"{_lines(self._page)} with {count_of(words, 'word')} in {calls_s[-1] - began_s:.2f} s"
        return f"{read}; check was called {len(calls_s) - 2} times, at most {longest_s:.2f} s apart"

    def turned(self, degrees: int) -> str:
        """Read the page turned clockwise; lines with the same text must be at the same place of the page."""
        page = self._read_one(turn(self._pixels, degrees))
        known, read = _frames(self._page, degrees), _frames(page)
        shared = known.keys() & read.keys()
        for text in shared:
            (left, top, right, bottom), (x, y) = read[text], known[text].reshape(2, 2).mean(axis=0)
            if not (left <= x <= right and top <= y <= bottom):
                place = f"at x {left:.0f} to {right:.0f}, y {top:.0f} to {bottom:.0f}, not around {x:.0f}, {y:.0f}"
                raise EngineFailed(f"{text[:40]!r} is {place}: boxes must be in the given image, whatever was turned.")
        return f"{_lines(page)}, {len(shared)} with the same text and place, angle {page.angle}"

    def gray(self) -> str:
        """Read the page as an array without colours, as gray image files give it."""
        return _lines(self._read_one(cast(Pixels, cv2.cvtColor(self._pixels, cv2.COLOR_BGR2GRAY))))

    def blank(self) -> str:
        """Check that a white image, as large as the sample page, gives no text."""
        page = self._read_one(np.full_like(self._pixels, 255))
        if page.lines:
            raise EngineFailed(f"{_lines(page)} read where nothing is, such as {page.lines[0].text[:40]!r}.")
        return "no line"

    def tiny(self) -> str:
        """Read a single pixel."""
        return _lines(self._read_one(np.full_like(self._pixels[:1, :1], 255)))

    def deadline(self) -> str:
        """Check that a page whose deadline has passed does not affect another page of its batch."""

        def late() -> None:
            raise DeadlineExceeded("The deadline of this page has passed.")

        image = Image(self._pixels, "png")
        began_s = time.monotonic()
        overdue, in_time = self._read(ReadTask(image, _OPTIONS, check=late), ReadTask(image, _OPTIONS))
        if not isinstance(overdue, DeadlineExceeded):
            what = f"check raised DeadlineExceeded, and the answer is {_named(overdue)}"
            raise EngineFailed(f"{what}: call each task's check, and answer the task with its error.")
        if not isinstance(in_time, Page):
            raise EngineFailed(f"the page beside the overdue one is answered with {_named(in_time)}.")
        return f"kept, and the page beside it is read; both took {time.monotonic() - began_s:.2f} s"

    def _read_one(self, pixels: Pixels, check: Check = no_check) -> Page:
        [answer] = self._read(ReadTask(Image(pixels, "png"), _OPTIONS, check=check))
        if not isinstance(answer, Page):
            raise EngineFailed(f"the answer is {_named(answer)}.")
        _check_page(answer, pixels)
        return answer

    def _read(self, *tasks: ReadTask) -> Sequence[object]:
        faulthandler.dump_traceback_later(_LONGEST_S, exit=True)
        try:
            answers = self._handle.read(tasks)
        except Exception as error:
            raise EngineFailed(
                f"read raised {_named(error)}: it must answer each task with a Page or an error."
            ) from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        if len(answers) != len(tasks):
            raise EngineFailed(
                f"{count_of(len(answers), 'answer')} to {count_of(len(tasks), 'task')}: each task needs one."
            )
        return answers


def _check_page(page: Page, pixels: Pixels) -> None:
    """Raises EngineFailed for an invalid page, which the service could not return to a client."""
    height, width = pixels.shape[:2]
    if (page.width, page.height) != (width, height):
        raise EngineFailed(f"the page is {page.width} x {page.height}, the image {width} x {height} pixels.")
    if page.angle not in (0, 90, 180, 270):
        raise EngineFailed(f"angle is {page.angle}: accepted is 0, 90, 180 or 270.")
    words = [word for line in page.lines for word in line.words or ()]
    texts: list[Boxed] = [*page.lines, *words, *(character for word in words for character in word.characters)]
    for text in texts:
        if not text.text:
            raise EngineFailed(f"a {type(text).__name__} has no text: leave it out.")
        if not 0 <= text.confidence <= 1:
            raise EngineFailed(f"the confidence of {text.text[:40]!r} is {text.confidence}: it must be from 0 to 1.")
        if not all(-_SLACK_PX <= x <= width + _SLACK_PX and -_SLACK_PX <= y <= height + _SLACK_PX for x, y in text.box):
            raise EngineFailed(f"the box of {text.text[:40]!r} leaves the page of {width} x {height}: {text.box}.")


def _lines(page: Page) -> str:
    return count_of(len(page.lines), "line")


def _frames(page: Page, degrees: int = 0) -> dict[str, NDArray[np.floating]]:
    """Bounding boxes by text, turned clockwise by `degrees`, of lines whose text is long enough and unique."""
    counts = Counter(line.text for line in page.lines)
    lines = [line for line in page.lines if counts[line.text] == 1 and len(line.text) >= _COMPARED_CHARACTERS]
    frames = to_frames(turn_points(to_boxes(lines), degrees, page.width, page.height))
    return {line.text: frame for line, frame in zip(lines, frames, strict=True)}


def _named(answer: object) -> str:
    return f"{type(answer).__name__}: {answer}".rstrip(".") if isinstance(answer, Exception) else type(answer).__name__
