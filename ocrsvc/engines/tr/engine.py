"""The engine tr: Tr 2.3, which the operator provides, behind the engine contract."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.engines.tr.binding import ROTATED, UPRIGHT, RawLine, Sessions, TrLibrary, TrRunner
from ocrsvc.errors import EngineUnavailable, OcrsvcError
from ocrsvc.results import Box, EngineInfo, Line, Page, Pixels, Point, ReadOptions, ReadTask
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

WARM_UP_PAGE: Final = (480, 640)
WARM_UP_LINE: Final = (32, 256)


class TrHandle:
    """One thread's access to Tr; see engines.contract.Handle. It releases its sessions if it owns them."""

    def __init__(self, library: TrLibrary, sessions: Sessions, *, owned: bool) -> None:
        self._library = library
        self._sessions = sessions
        self._owned = owned
        self._runner = TrRunner(library, sessions)

    def warm_up(self) -> None:
        """Run a blank page and a blank line. Raises EngineUnavailable."""
        try:
            for flag in (UPRIGHT, ROTATED):
                self._runner.run(np.full(WARM_UP_PAGE, 255, np.uint8), flag)
            self._runner.recognize(np.full(WARM_UP_LINE, 255, np.uint8))
        except OcrsvcError as error:
            raise EngineUnavailable(
                f"Tr failed on a blank page: {error}", "Check that all files in OCRSVC_TR_HOME are of one release."
            ) from error

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Each page by itself; see engines.contract.Handle. Tr does not turn pages: their angle is always 0."""
        return [self._answer(task) for task in tasks]

    def close(self) -> None:
        """Release the sessions, if they are this handle's own."""
        if self._owned:
            self._library.release(self._sessions)

    def _answer(self, task: ReadTask) -> Page | OcrsvcError:
        try:
            # The library reads a whole page in one call, which nothing ends from outside.
            task.check()
            raw_lines = self._run(task.image.pixels, task.options)
        except OcrsvcError as error:
            return error
        threshold = task.options.min_confidence or 0.0
        lines = (to_line(raw) for raw in raw_lines)
        kept = tuple(line for line in lines if line.confidence >= threshold)
        return Page(task.image.width, task.image.height, 0, kept)

    def _run(self, pixels: Pixels, options: ReadOptions) -> list[RawLine]:
        if not options.detect:
            return [self._runner.recognize(pixels)]
        return self._runner.run(pixels, UPRIGHT if options.upright_boxes else ROTATED)


class TrEngine:
    """The loaded library; models are loaded with the handles, or here when the sessions are shared.

    All handles run one pair of `shared_sessions`, or each opens its own. Raises EngineUnavailable: Tr is missing, does
    not load, or was built for another device than the one asked for.
    """

    traits = EngineTraits(serial_open=True, best_batch=1, wants_gray=True)

    def __init__(self, home: Path | None, *, shared_sessions: bool = False, device: str = "auto") -> None:
        self._library = TrLibrary(home)
        if device not in ("auto", self._library.device):
            raise EngineUnavailable(
                f"OCRSVC_DEVICE={device}, but the libtr.so in OCRSVC_TR_HOME was built for {self._library.device}.",
                f"Put the {device} build of Tr 2.3 there, or set OCRSVC_DEVICE=auto.",
            )
        self._shared = self._library.open_sessions() if shared_sessions else None

    def describe(self) -> EngineInfo:
        """See engines.contract.Engine."""
        return EngineInfo("tr", "ctpn+crnn", "2.3", self._library.device, "fp32", "libtr")

    def open_handle(self) -> TrHandle:
        """See engines.contract.Engine. Raises EngineUnavailable."""
        sessions = self._shared or self._library.open_sessions()
        return TrHandle(self._library, sessions, owned=self._shared is None)

    def close(self) -> None:
        """Release the shared sessions. The library itself stays mapped: unloading native code is not safe."""
        if self._shared is not None:
            self._library.release(self._shared)
            self._shared = None


def to_line(raw: RawLine) -> Line:
    """Text (blanks go, repeats collapse), confidence (mean over the steps that are not blank, else 0) and box."""
    text = "".join([chr(code) for before, code in pairwise([-1, *raw.codes]) if code >= 0 and code != before])
    not_blank = [probability for code, probability in zip(raw.codes, raw.probabilities, strict=True) if code >= 0]
    confidence = min(1.0, max(0.0, sum(not_blank) / len(not_blank))) if not_blank else 0.0
    return Line(text, confidence, to_box(raw.rect))


def to_box(rect: tuple[float, float, float, float, float]) -> Box:
    """Corners of (cx, cy, w, h, clockwise degrees), beginning where x and y are least before the turn.

    The rect can be had back: w is the length of the first side, h of the second, the angle that of the first.
    """
    cx, cy, width, height, angle = rect
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))

    def corner(x: float, y: float) -> Point:
        return cx + x * cos - y * sin, cy + x * sin + y * cos

    right, down = width / 2, height / 2
    return corner(-right, -down), corner(right, -down), corner(right, down), corner(-right, down)


def open_tr(settings: Settings, _plan: ThreadPlan) -> TrEngine:
    """The engine as the settings want it. Raises EngineUnavailable."""
    return TrEngine(settings.tr_home, shared_sessions=settings.tr_shared_sessions, device=settings.device)
