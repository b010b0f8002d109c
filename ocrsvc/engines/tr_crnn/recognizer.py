"""The line recognizer of Tr 2.8, a closed-source library.

The library has one model, a line recognizer (OpenCV DNN, CPU only). Measured with 2.8.6:

- one handle in two threads returns garbage without an error; opening two handles at the same time aborts the process;
- a missing or truncated model file aborts the process, and so does an image much taller than wide;
- it scales lines to a height of 48 px, keeping the aspect ratio, and returns one step per 4 px of width.
"""

import ctypes
import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.line_recognizer import (
    MAX_WIDTH_PER_HEIGHT,
    LineText,
    RecognizerInfo,
    crop_of_height,
    gray_with_margin,
)
from ocrsvc.engines.model.version import ModelVersion
from ocrsvc.errors import EngineFailed, EngineUnavailable
from ocrsvc.results import Check, Pixels, no_check
from ocrsvc.settings.settings import Settings

PACKAGE: Final = "tr"
# Largest ratio of height to width that is safe: from about 48 on, the scaled width is 0 and the library aborts.
MAX_HEIGHT_PER_WIDTH: Final = 16
_REINSTALL: Final = "Reinstall it: pip install --force-reinstall '.[tr]'."
_OPEN_LOCK: Final = threading.Lock()


class _Tensor(ctypes.Structure):
    """The library's struct for arrays; `alloc` is 1 if the library owns the buffer."""

    _fields_ = (
        ("buffer", ctypes.c_void_p),
        ("shape", ctypes.c_int * 8),
        ("ndim", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("alloc", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class Steps:
    """The model's output for one line, from left to right: one entry per 4 px at a height of 48 px."""

    indices: NDArray[np.int64]  # (steps,) 0 for blank, n for the n-th character of the table
    probabilities: NDArray[np.float32]  # (steps,) probability of the index at each step


class CrnnLibrary:
    """The loaded library and its table of characters. Raises EngineUnavailable."""

    def __init__(self) -> None:
        system, machine = platform.system(), platform.machine()
        if (system, machine) != ("Linux", "x86_64"):
            raise EngineUnavailable(
                f"The engine tr_crnn runs on x86-64 Linux only; this machine is {machine} {system}.",
                "Set OCRSVC_ENGINE=ppocr, which supports this machine.",
            )
        installed = _find_package()
        self.version: str = installed.version
        folder = Path(str(installed.locate_file(PACKAGE)))
        # The library aborts the process if a file is incomplete, so compare with the sizes in the wheel's record.
        sizes = {str(file): file.size for file in installed.files or ()}
        for name in (f"{PACKAGE}/{part}" for part in ("libtr.so", "crnn.bin", "char_table.txt")):
            path = Path(str(installed.locate_file(name)))
            if not path.is_file() or sizes.get(name) not in (None, path.stat().st_size):
                raise EngineUnavailable(f"{path} is missing or damaged.", _REINSTALL)
        self.characters: str = (folder / "char_table.txt").read_text("utf-8")
        self._model = folder / "crnn.bin"
        self.calls = _load(folder / "libtr.so")

    def open(self) -> int:
        """Open a model, which takes 150 MB, one at a time; returns its handle, an address. Raises EngineUnavailable."""
        path = str(self._model).replace("'", "''")
        with _OPEN_LOCK:
            address: int | None = self.calls.crnn_init(f"{{model_path:'{path}'}}".encode())
        if not address:
            raise EngineUnavailable(f"Tr could not open its model {self._model}.", _REINSTALL)
        return address


def _find_package() -> metadata.Distribution:
    try:
        return metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise EngineUnavailable(
            "The engine tr_crnn needs the package tr, which is not installed.",
            "Install the extra: pip install '.[tr]'.",
        ) from error


def _load(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions, whose calls release the GIL. Raises EngineUnavailable."""
    try:
        calls = ctypes.CDLL(str(path))
        calls.crnn_init.argtypes, calls.crnn_init.restype = (ctypes.c_char_p,), ctypes.c_void_p
        calls.crnn_release.argtypes, calls.crnn_release.restype = (ctypes.c_void_p,), ctypes.c_int
        calls.crnn_run.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Tensor), ctypes.POINTER(_Tensor))
        calls.crnn_run.restype = ctypes.c_int
        calls.ctensor_free.argtypes, calls.ctensor_free.restype = (ctypes.POINTER(_Tensor),), None
    except (OSError, AttributeError) as error:
        raise EngineUnavailable(f"{path} cannot be loaded: {error}.", "The engine tr_crnn needs tr 2.8.") from error
    return calls


def _copy_row(tensor: _Tensor) -> NDArray[np.float32]:
    """Copy a (1, steps) float32 tensor to an array (steps,). Raises EngineFailed."""
    shape = tuple(tensor.shape[: max(0, min(tensor.ndim, 8))])
    if not tensor.buffer or (tensor.kind, tensor.itemsize) != (ord("f"), 4) or len(shape) != 2 or shape[0] != 1:
        raise EngineFailed(f"Tr returned an array of kind {tensor.kind}, {tensor.itemsize} bytes, shape {shape}.")
    buffer = ctypes.cast(tensor.buffer, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(buffer, shape).reshape(-1).copy()


# Margin added on each side of a line, as a share of its height. For 110 lines from pages of many kinds, the character
# error rate is 0.016 with it and 0.030 without; margins of 0.05 and 0.2 give the same rate as 0.1.
MARGIN: Final = 0.1
HEIGHT: Final = 48


class TrCrnnLineReader:
    """Reads lines with its own model; create, use and close it in one thread. Raises EngineUnavailable."""

    def __init__(self, library: CrnnLibrary) -> None:
        self._calls, self._characters = library.calls, library.characters
        self._address: int | None = library.open()
        self._thread = threading.get_ident()

    def crop_size(self, along: float, across: float) -> tuple[int, int]:
        """Width and height of a crop, which has Tr's line height and the line's aspect ratio; see LineReader."""
        return crop_of_height(along, across, HEIGHT)

    def read(self, crops: Sequence[Pixels], check: Check = no_check) -> list[LineText]:
        """Read upright lines, (h, w) gray or (h, w, 3) BGR, uint8, not empty. Raises EngineFailed."""
        texts = []
        for crop in crops:
            check()
            texts.append(decode(self.run(prepare(crop)), self._characters))
        return texts

    def run(self, line: NDArray[np.uint8]) -> Steps:
        """Read one line, (h, w) uint8, C-contiguous, with h at most 16 times w. Raises EngineFailed."""
        self._check_call(line)
        shape = (ctypes.c_int * 8)(*line.shape)
        tensor, answer = _Tensor(line.ctypes.data, shape, line.ndim, ord("u"), 1, 0), (_Tensor * 2)()
        code = self._calls.crnn_run(self._address, ctypes.byref(tensor), answer)
        if code != 0:
            raise EngineFailed(f"Tr returned the error {code} for a line of {line.shape[1]} x {line.shape[0]} px.")
        try:
            probabilities, indices = _copy_row(answer[0]), _copy_row(answer[1])
            if probabilities.shape != indices.shape or not np.isfinite((probabilities, indices)).all():
                detail = f"{probabilities.size} probabilities for {indices.size} steps, or no numbers"
                raise EngineFailed(f"Tr returned {detail}.")
            return Steps(np.rint(indices).astype(np.int64), probabilities)
        finally:
            for output in answer:
                self._calls.ctensor_free(ctypes.byref(output))

    def close(self) -> None:
        """Free the model; a second call does nothing. Raises EngineFailed."""
        address, self._address = self._address, None
        if address is None:
            return
        with _OPEN_LOCK:
            code = self._calls.crnn_release(address)
        if code != 0:
            raise EngineFailed(f"Tr returned the error {code} when its model was closed.")

    def _check_call(self, line: NDArray[np.uint8]) -> None:
        if self._address is None or self._thread != threading.get_ident():
            raise EngineFailed("A handle of Tr was used after it was closed, or by another thread than its own.")
        if line.ndim != 2 or line.dtype != np.uint8 or not line.flags.c_contiguous:
            raise EngineFailed(f"Tr reads contiguous gray lines only, not {line.dtype} of shape {line.shape}.")
        height, width = line.shape
        if not 0 < height <= MAX_HEIGHT_PER_WIDTH * width:
            raise EngineFailed(f"Tr cannot read a line of {width} x {height} px.")


def prepare(crop: Pixels) -> Pixels:
    """Prepare a line for Tr: gray, contiguous, not too long, with a margin in the background's colour."""
    height, width = crop.shape[:2]
    if width > MAX_WIDTH_PER_HEIGHT * height:
        crop = np.asarray(cv2.resize(crop, (MAX_WIDTH_PER_HEIGHT * height, height), interpolation=cv2.INTER_AREA))
    return gray_with_margin(crop, MARGIN)


def decode(steps: Steps, characters: str) -> LineText:
    """Skip blanks and repeats; the confidence is the mean over non-blank steps, or 0. Raises EngineFailed."""
    indices, not_blank = steps.indices, steps.indices > 0
    if indices.max(initial=0) > len(characters):
        raise EngineFailed(f"Tr returned the character index {indices.max()} for a table of {len(characters)}.")
    if not not_blank.any():
        return LineText("", 0.0)
    first = not_blank & (indices != np.concatenate(([0], indices[:-1])))
    text = "".join(characters[index - 1] for index in indices[first])
    return LineText(text, float(np.clip(steps.probabilities[not_blank].mean(), 0.0, 1.0)))


class TrCrnnRecognizer:
    """The loaded library; each of its readers takes 150 MB. Raises EngineUnavailable."""

    def __init__(self) -> None:
        self._library = CrnnLibrary()
        provider = "OpenCV inside Tr on the CPU"
        self.info = RecognizerInfo("Tr CRNN", self._library.version, provider, ("zh", "en"), serial_open=True)

    def open_reader(self) -> TrCrnnLineReader:
        """Open a reader for the calling thread; see engines.line_recognizer.LineRecognizer."""
        return TrCrnnLineReader(self._library)


def open_tr_crnn(_settings: Settings, _model: ModelVersion | None) -> TrCrnnRecognizer:
    """Load the library. Raises EngineUnavailable."""
    return TrCrnnRecognizer()
