"""The fake engine for tests: no model, predictable results, configurable errors and delays.

It returns two lines per image: the size as `WxH`, and the CRC-32 of the pixels as eight hexadecimal digits. All
characters have the same width. OCRSVC_FAKE_TEXT adds a third line.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.errors import EngineFailed, OcrsvcError
from ocrsvc.results import Box, Character, Check, EngineInfo, EngineTimes, Line, Page, ReadOptions, ReadTask, Word
from ocrsvc.settings.engine import FakeEngineSettings
from ocrsvc.system.thread_plan import ThreadPlan

SIZE_CONFIDENCE: Final = 1.0
HASH_CONFIDENCE: Final = 0.5
_WORK: Final = bytes(1 << 18)
_CHECK_S: Final = 0.05
_SIGNALS: Final = {"crash": signal.SIGKILL, "abort": signal.SIGABRT, "segfault": signal.SIGSEGV}


class FakeHandle:
    """One thread's access to the fake engine."""

    def __init__(self, engine: FakeEngine) -> None:
        self._settings, self._closed, self._leaked = engine.settings, engine.closed, engine.leaked

    def warm_up(self) -> None:
        """Wait for OCRSVC_FAKE_WARM_UP_S."""
        self._closed.wait(self._settings.fake_warm_up_s)

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Read images; returns one Page or error per task, in the same order."""
        return [self._answer(task) for task in tasks]

    def close(self) -> None:
        """Do nothing, because a handle holds no resources."""

    def _answer(self, task: ReadTask) -> Page | OcrsvcError:
        began_s = time.monotonic()
        digest = hash_text(task.image.pixels)
        is_faulty = not self._settings.fake_fault_on or digest in self._settings.fake_fault_on
        try:
            self._use_resources(task.check)
            if is_faulty:
                self._inject_fault(digest)
        except OcrsvcError as error:
            return error
        found_s = time.monotonic()
        page = _page(task, digest, self._settings)
        if is_faulty and self._settings.fake_fault == "nonsense":
            page = replace(page, lines=tuple(replace(line, confidence=math.nan) for line in page.lines))
        return replace(page, times=EngineTimes(began_s, found_s, time.monotonic()))

    def _use_resources(self, check: Check) -> None:
        """Wait, use CPU time (without the GIL, like native code) and leak memory. Raises the errors of `check`."""
        end = time.monotonic() + self._settings.fake_latency_s
        while (left_s := end - time.monotonic()) > 0 and not self._closed.wait(min(left_s, _CHECK_S)):
            check()
        end = time.thread_time() + self._settings.fake_burn_s
        while time.thread_time() < end:
            check()
            zlib.crc32(_WORK)
        if self._settings.fake_leak_bytes:
            # The bytes must not be zero: the kernel counts pages as used only after a write.
            self._leaked.append(b"\1" * self._settings.fake_leak_bytes)

    def _inject_fault(self, digest: str) -> None:
        if self._settings.fake_fault == "fail":
            raise EngineFailed(f"OCRSVC_FAKE_FAULT makes the fake engine fail on the image {digest}.")
        if self._settings.fake_fault in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[self._settings.fake_fault])
        if self._settings.fake_fault == "hang":
            self._closed.wait()
            raise EngineFailed(f"The fake engine hung on the image {digest} until it was closed.")


class FakeEngine:
    """An engine without a model."""

    traits = EngineTraits(any_thread=True)

    def __init__(self, settings: FakeEngineSettings, _plan: ThreadPlan | None = None) -> None:
        self.settings = settings
        self.closed = threading.Event()
        self.leaked: list[bytes] = [b"\1" * settings.fake_model_bytes]

    def describe(self) -> EngineInfo:
        """Return the engine's name, model, version and device."""
        return EngineInfo("fake", "none", "1", "cpu", "none", "none")

    def open_handle(self) -> FakeHandle:
        """Open a handle for the calling thread."""
        return FakeHandle(self)

    def close(self) -> None:
        """End all hanging reads and waits, and free the memory leaked on purpose."""
        self.closed.set()
        self.leaked.clear()


def hash_text(pixels: NDArray[np.uint8]) -> str:
    """CRC-32 of the pixels, row by row, as eight hexadecimal digits."""
    return f"{zlib.crc32(np.ascontiguousarray(pixels).data):08x}"


def _page(task: ReadTask, digest: str, settings: FakeEngineSettings) -> Page:
    threshold = task.options.min_confidence or 0.0
    kept = [line for line in _lines(task, digest, settings) if line.confidence >= threshold]
    width, height = task.image.width, task.image.height
    return Page(width, height, 0, tuple(_with_words(line, task.options) for line in kept))


def _lines(task: ReadTask, digest: str, settings: FakeEngineSettings) -> list[Line]:
    width, height = task.image.width, task.image.height
    size, text = f"{width}x{height}", settings.fake_text
    if not task.options.detect:
        whole = f"{size} {digest} {text}" if text else f"{size} {digest}"
        return [Line(whole, HASH_CONFIDENCE, _band(width, height, 0.0, 1.0))]
    lines = [
        Line(size, SIZE_CONFIDENCE, _band(width, height, 0.1, 0.4)),
        Line(digest, HASH_CONFIDENCE, _band(width, height, 0.6, 0.9)),
    ]
    if text:
        lines.append(Line(text, settings.fake_confidence, _band(width, height, 0.9, 1.0)))
    return lines


def _with_words(line: Line, options: ReadOptions) -> Line:
    if not options.wants_words:
        return line
    every = [Character(text, line.confidence, _part(line, place, place + 1)) for place, text in enumerate(line.text)]
    words, begin = [], 0
    for text in line.text.split(" "):
        end = begin + len(text)
        characters = tuple(every[begin:end]) if options.characters else ()
        words.append(Word(text, line.confidence, _part(line, begin, end), characters))
        begin = end + 1
    return replace(line, words=tuple(words))


def _part(line: Line, begin: int, end: int) -> Box:
    """The box of the characters from `begin` to `end` in a line."""
    (_, upper), (right, lower) = line.box[0], line.box[2]
    left, right = right * begin / len(line.text), right * end / len(line.text)
    return (left, upper), (right, upper), (right, lower), (left, lower)


def _band(width: int, height: int, top: float, bottom: float) -> Box:
    """A box as wide as the image; `top` and `bottom` are fractions of the image's height."""
    upper, lower, right = height * top, height * bottom, float(width)
    return (0.0, upper), (right, upper), (right, lower), (0.0, lower)
