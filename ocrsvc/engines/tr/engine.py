"""The engine tr: Tr 2.3, a closed-source library that the operator provides.

The library has no header or documentation. Public programs that call it show:

- `tr_init(process, session, model path, NULL)` returns nothing, so a failure is not visible; all callers pass process
  0. The path is absolute, or relative to the working directory.
- Session numbers index a table of 256 entries, according to the vendor's own wrapper.
- `tr_run` finds and reads lines, `tr_recognize` reads one line; both return a count. Lines are in Tr's own order.
- Several threads may use a pair of sessions; whether that is fast depends on the build.
"""

import ctypes
import math
import mmap
import os
import re
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import numpy as np

from ocrsvc.engines.contract import EngineTraits
from ocrsvc.errors import EngineFailed, EngineUnavailable, OcrsvcError
from ocrsvc.results import Box, EngineInfo, Line, Page, Pixels, Point, ReadTask
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

WARM_UP_PAGE: Final = (480, 640)
WARM_UP_LINE: Final = (32, 256)
LIBRARY: Final = "libtr.so"
DETECTION_MODEL: Final = "ctpn.bin"
RECOGNITION_MODEL: Final = "crnn.bin"
MAX_LINES: Final = 512
MAX_STEPS: Final = 512
MAX_SESSIONS: Final = 256
UPRIGHT: Final = 1
ROTATED: Final = 2
_GRAY_8: Final = 0
_BGR_8: Final = 16
_BLANK: Final = -1
_LAST_CODE_POINT: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_REMEDY: Final = "Set OCRSVC_TR_HOME to the folder of Tr 2.3 that holds libtr.so, ctpn.bin and crnn.bin."
_LOAD_REMEDIES: Final = (
    # If the message has no path, the file is missing; if it has one, the file was built for another processor.
    (r"^[^/]+: cannot open shared object file", "Put the missing library beside libtr.so, or on LD_LIBRARY_PATH."),
    ("undefined symbol", "Take libtr.so and the libraries beside it from the same release of Tr 2.3."),
    ("", "Use a libtr.so that was built for this machine's system and processor."),
)


Sessions = tuple[int, int]  # session numbers of the model that finds lines and the model that reads them


class TrLibrary:
    """Tr's library, loaded from a folder; any thread may open and release sessions. Raises EngineUnavailable."""

    def __init__(self, home: Path | None) -> None:
        self._home = _check_home(home)
        self.device: Literal["cpu", "cuda"] = _read_device(self._home)
        self.calls = _load(self._home)
        self._free = list(range(MAX_SESSIONS))
        self._lock = threading.Lock()

    def open_sessions(self) -> Sessions:
        """Open two sessions, which loads both models. Raises EngineUnavailable if all session numbers are in use."""
        with self._lock:
            if len(self._free) < 2:
                raise EngineUnavailable(
                    f"All {MAX_SESSIONS} sessions of Tr are open.", "Set OCRSVC_TR_SHARED_SESSIONS=true."
                )
            finder, reader = self._free.pop(0), self._free.pop(0)
            for number, model in ((finder, DETECTION_MODEL), (reader, RECOGNITION_MODEL)):
                self.calls.tr_init(0, number, os.fsencode(self._home / model), None)
            return finder, reader

    def release(self, sessions: Sessions) -> None:
        """Release both sessions and free their models; no thread may be using them."""
        with self._lock:
            for number in sessions:
                self.calls.tr_release(number)
                self._free.append(number)


class TrHandle:
    """One thread's access to Tr, with 2 MiB of buffers for Tr's results."""

    def __init__(self, library: TrLibrary, sessions: Sessions, *, owned: bool) -> None:
        self._library, self._sessions, self._owned = library, sessions, owned
        self._rects = np.zeros((MAX_LINES, 6), np.float32)
        self._codes = np.zeros((MAX_LINES, MAX_STEPS), np.int32)
        self._probabilities = np.zeros((MAX_LINES, MAX_STEPS), np.float32)
        self._results = self._codes.ctypes.data, self._probabilities.ctypes.data, MAX_STEPS

    def warm_up(self) -> None:
        """Run a blank page and a blank line. Raises EngineUnavailable."""
        try:
            for flag in (UPRIGHT, ROTATED):
                self._run(np.full(WARM_UP_PAGE, 255, np.uint8), flag)
            self._recognize(np.full(WARM_UP_LINE, 255, np.uint8))
        except OcrsvcError as error:
            raise EngineUnavailable(
                f"Tr failed on a blank page: {error}", "Check that all files in OCRSVC_TR_HOME are from one release."
            ) from error

    def read(self, tasks: Sequence[ReadTask]) -> list[Page | OcrsvcError]:
        """Read images; returns one Page or error per task. Tr does not rotate pages, so their angle is always 0."""
        return [self._answer(task) for task in tasks]

    def close(self) -> None:
        """Release the sessions if this handle owns them."""
        if self._owned:
            self._library.release(self._sessions)

    def _answer(self, task: ReadTask) -> Page | OcrsvcError:
        pixels, options = np.ascontiguousarray(task.image.pixels), task.options
        try:
            # The library reads a page in one call that cannot be interrupted, so check the deadline before.
            task.check()
            if options.detect:
                lines = self._run(pixels, UPRIGHT if options.upright_boxes else ROTATED)
            else:
                lines = self._recognize(pixels)
        except OcrsvcError as error:
            return error
        kept = tuple(line for line in lines if line.confidence >= (options.min_confidence or 0.0))
        return Page(task.image.width, task.image.height, 0, kept)

    def _run(self, image: Pixels, flag: int) -> list[Line]:
        """Read a (H, W[, 3]) gray or BGR uint8 page; `flag` is UPRIGHT or ROTATED boxes. Raises EngineFailed."""
        self._clear_buffers()
        count = self._library.calls.tr_run(
            *self._sessions, *_image_arguments(image), flag, self._rects.ctypes.data, MAX_LINES, *self._results
        )
        _check_count(count, MAX_LINES, "lines", image)
        return [self._take_line(index, image) for index in range(count)]

    def _recognize(self, image: Pixels) -> list[Line]:
        self._clear_buffers()
        steps = self._library.calls.tr_recognize(self._sessions[1], *_image_arguments(image), *self._results)
        _check_count(steps, MAX_STEPS, "steps", image)
        height, width = image.shape[:2]
        self._rects[0] = (width / 2, height / 2, width, height, 0, steps)
        return [self._take_line(0, image)]

    def _clear_buffers(self) -> None:
        """Clear the previous page's results, because Tr overwrites only a part of them."""
        self._rects[:] = 0
        self._codes[:] = _BLANK
        self._probabilities[:] = 0

    def _take_line(self, index: int, image: Pixels) -> Line:
        """Check and convert one line, whose rect is (cx, cy, w, h, degrees) as for boxPoints. Raises EngineFailed."""
        cx, cy, width, height, angle, count = rect = self._rects[index].tolist()
        if not math.isfinite(sum(rect)) or width < 0 or height < 0:
            raise _invalid_result(f"the box {rect}", image)
        steps = round(count)
        _check_count(steps, MAX_STEPS, "steps", image)
        codes: list[int] = self._codes[index, :steps].tolist()
        probabilities: list[float] = self._probabilities[index, :steps].tolist()
        # Surrogates are not valid text, because UTF-8 cannot encode them.
        is_text = max(codes, default=0) <= _LAST_CODE_POINT and not any(code in _SURROGATES for code in codes)
        if not is_text or not math.isfinite(sum(probabilities)):
            raise _invalid_result("invalid characters or probabilities", image)
        # The text skips blanks and repeats; the confidence is the mean over all steps that are not blank.
        text = "".join([chr(code) for before, code in pairwise([_BLANK, *codes]) if code >= 0 and code != before])
        not_blank = [probability for code, probability in zip(codes, probabilities, strict=True) if code >= 0]
        confidence = min(1.0, max(0.0, sum(not_blank) / len(not_blank))) if not_blank else 0.0
        return Line(text, confidence, to_box((cx, cy, width, height, angle)))


class TrEngine:
    """The loaded library with one pair of sessions for all handles, or one per handle. Raises EngineUnavailable."""

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
        """Return the engine's name, model, version and device."""
        return EngineInfo("tr", "ctpn+crnn", "2.3", self._library.device, "fp32", "libtr")

    def open_handle(self) -> TrHandle:
        """Open a handle for the calling thread, with shared or own sessions. Raises EngineUnavailable."""
        sessions = self._shared or self._library.open_sessions()
        return TrHandle(self._library, sessions, owned=self._shared is None)

    def close(self) -> None:
        """Release the shared sessions. The library stays loaded, because unloading native code is not safe."""
        if self._shared is not None:
            self._library.release(self._shared)
            self._shared = None


def to_box(rect: tuple[float, float, float, float, float]) -> Box:
    """The corners of (cx, cy, w, h, clockwise degrees), clockwise, from the one that was top left before rotation."""
    cx, cy, width, height, angle = rect
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))

    def corner(x: float, y: float) -> Point:
        return cx + x * cos - y * sin, cy + x * sin + y * cos

    right, down = width / 2, height / 2
    return corner(-right, -down), corner(right, -down), corner(right, down), corner(-right, down)


def _image_arguments(image: Pixels) -> tuple[int, int, int, int]:
    """The arguments that describe an image: address, rows, columns and type code."""
    return image.ctypes.data, image.shape[0], image.shape[1], _GRAY_8 if image.ndim == 2 else _BGR_8


def _check_count(count: int, limit: int, noun: str, image: Pixels) -> None:
    if not 0 <= count <= limit:
        raise _invalid_result(f"{count} {noun} where 0 to {limit} are possible", image)


def _invalid_result(result: str, image: Pixels) -> EngineFailed:
    return EngineFailed(
        f"Tr returned {result} for an image of {image.shape[1]} x {image.shape[0]} px.",
        "Send the image again; if this repeats, Tr cannot read it.",
    )


def _check_home(home: Path | None) -> Path:
    """Check the files in Tr's folder, and return its absolute path. Raises EngineUnavailable."""
    if home is None:
        raise EngineUnavailable("The engine tr needs Tr 2.3, but OCRSVC_TR_HOME is not set.", _REMEDY)
    folder = home.absolute()
    for name in (LIBRARY, DETECTION_MODEL, RECOGNITION_MODEL):
        path = folder / name
        if not path.is_file() or path.stat().st_size == 0 or not os.access(path, os.R_OK):
            raise EngineUnavailable(f"{path} is missing, empty or not readable.", _REMEDY)
    return folder


def _read_device(home: Path) -> Literal["cpu", "cuda"]:
    """The device that Tr was built for: "cuda" if Tr or the ONNX Runtime beside it names the CUDA runtime."""
    for path in (home / LIBRARY, *home.glob("libonnxruntime.so*")):
        # An empty file cannot be mapped; loading it will fail with a message.
        if path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"libcudart.so") != -1:
                    return "cuda"
    return "cpu"


def _load(home: Path) -> ctypes.CDLL:
    """Load the library and declare its functions, whose calls release the GIL. Raises EngineUnavailable."""
    try:
        # Tr needs the ONNX Runtime in its folder, but not every build searches there: load that first.
        for companion in sorted(home.glob("libonnxruntime.so*")):
            ctypes.CDLL(str(companion), ctypes.RTLD_GLOBAL)
        return _declare(ctypes.CDLL(str(home / LIBRARY)))
    except OSError as error:
        remedy = next(remedy_text for pattern, remedy_text in _LOAD_REMEDIES if re.search(pattern, str(error)))
        raise EngineUnavailable(f"{home / LIBRARY} cannot be loaded: {error}.", remedy) from error
    except AttributeError as error:
        raise EngineUnavailable(f"{home / LIBRARY} is not Tr 2.3: {error}.", _REMEDY) from error


def _declare(calls: ctypes.CDLL) -> ctypes.CDLL:
    number, address = ctypes.c_int, ctypes.c_void_p
    image = (address, number, number, number)
    signatures: tuple[tuple[str, type | None, *tuple[type, ...]], ...] = (
        ("tr_init", None, number, number, ctypes.c_char_p, address),
        ("tr_release", None, number),
        ("tr_run", number, number, number, *image, number, address, number, address, address, number),
        ("tr_recognize", number, number, *image, address, address, number),
    )
    for name, returns, *arguments in signatures:
        function = getattr(calls, name)
        function.restype, function.argtypes = returns, arguments
    return calls


def open_tr(settings: Settings, _plan: ThreadPlan) -> TrEngine:
    """Open the engine tr. Raises EngineUnavailable."""
    return TrEngine(settings.tr_home, shared_sessions=settings.tr_shared_sessions, device=settings.device)
