"""The ctypes binding of Tr 2.8's closed library; the only file that calls it.

The library holds one model: a recognizer of single lines (OpenCV DNN inside, CPU only). What was measured with 2.8.6:

- one handle in two threads returns garbage without an error; two handles opened at once abort the process;
- a model file that is missing or cut short aborts the process, and so does an image much taller than wide;
- it scales a line to 48 px of height itself, keeps the aspect ratio, and answers one step for each 4 px of width.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ocrsvc.errors import EngineFailed, EngineUnavailable

PACKAGE: Final = "tr"
MOST_HEIGHT_PER_WIDTH: Final = 16
"""Most heights per width that the library survives with a margin: at about 48 its scaled width is 0 and it aborts."""

_REINSTALL: Final = "Install it again: pip install --force-reinstall 'ocrsvc[tr]'."
_OPEN_LOCK: Final = threading.Lock()


class _Tensor(ctypes.Structure):
    """The library's own array record; `alloc` says that the library owns the buffer."""

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
    """What the model says along one line, from left to right; one entry for each step of 4 px at height 48."""

    indices: NDArray[np.int64]  # (steps,) int64; 0 is blank, n is the n-th character of the table
    probabilities: NDArray[np.float32]  # (steps,) float32, of the index chosen


class CrnnLibrary:
    """The loaded library and its character table; handles are opened from it. Raises EngineUnavailable."""

    def __init__(self) -> None:
        system, machine = platform.system(), platform.machine()
        if (system, machine) != ("Linux", "x86_64"):
            raise EngineUnavailable(
                f"The engine tr_crnn runs on x86-64 Linux only; this machine is {machine} {system}.",
                "Set OCRSVC_ENGINE=ppocr, which runs here too.",
            )
        installed = _find_package()
        self.version: str = installed.version
        folder = Path(str(installed.locate_file(PACKAGE)))
        _check_files(installed)
        self.characters: str = (folder / "char_table.txt").read_text("utf-8")
        self._model = folder / "crnn.bin"
        self._calls = _load(folder / "libtr.so")

    def open(self) -> CrnnHandle:
        """A handle of the calling thread, about 150 MB. Opens wait for each other. Raises EngineUnavailable."""
        path = str(self._model).replace("'", "''")
        with _OPEN_LOCK:
            address = self._calls.crnn_init(f"{{model_path:'{path}'}}".encode())
        if not address:
            raise EngineUnavailable(f"Tr could not open its model {self._model}.", _REINSTALL)
        return CrnnHandle(self._calls, address)


class CrnnHandle:
    """One opened model. Only the thread that opened it may call it."""

    def __init__(self, calls: ctypes.CDLL, address: int) -> None:
        self._calls = calls
        self._address: int | None = address
        self._thread = threading.get_ident()

    def run(self, line: NDArray[np.uint8]) -> Steps:
        """Read one line, (h, w) uint8, C-contiguous, h at most 16 times w.

        Raises EngineFailed: the library does not survive it, reports an error, or returns what makes no sense.
        """
        self._check_call(line)
        given, answer = _describe(line), (_Tensor * 2)()
        code = self._calls.crnn_run(self._address, ctypes.byref(given), answer)
        if code != 0:
            raise EngineFailed(f"Tr gave the error {code} for a line of {line.shape[1]} x {line.shape[0]} px.")
        try:
            return _take_steps(answer)
        finally:
            for tensor in answer:
                self._calls.ctensor_free(ctypes.byref(tensor))

    def close(self) -> None:
        """Free the model; a second call does nothing. Raises EngineFailed."""
        address, self._address = self._address, None
        if address is None:
            return
        with _OPEN_LOCK:
            code = self._calls.crnn_release(address)
        if code != 0:
            raise EngineFailed(f"Tr gave the error {code} when its model was closed.")

    def _check_call(self, line: NDArray[np.uint8]) -> None:
        if self._address is None or self._thread != threading.get_ident():
            raise EngineFailed("A handle of Tr was used after it was closed, or by a thread that did not open it.")
        if line.ndim != 2 or line.dtype != np.uint8 or not line.flags.c_contiguous:
            raise EngineFailed(f"Tr reads contiguous gray lines only, not {line.dtype} of shape {line.shape}.")
        height, width = line.shape
        if not 0 < height <= MOST_HEIGHT_PER_WIDTH * width:
            raise EngineFailed(f"Tr cannot read a line of {width} x {height} px.")


def _find_package() -> metadata.Distribution:
    try:
        return metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise EngineUnavailable(
            "The engine tr_crnn needs the package tr, which is not installed.",
            "Install the extra tr: pip install 'ocrsvc[tr]'.",
        ) from error


def _check_files(installed: metadata.Distribution) -> None:
    """Raise EngineUnavailable unless each file that the library opens is there, whole: it aborts otherwise."""
    sizes = {str(file): file.size for file in installed.files or ()}
    for name in (f"{PACKAGE}/{part}" for part in ("libtr.so", "crnn.bin", "char_table.txt")):
        path = Path(str(installed.locate_file(name)))
        if not path.is_file() or sizes.get(name) not in (None, path.stat().st_size):
            raise EngineUnavailable(f"{path} is missing or damaged.", _REINSTALL)


def _load(path: Path) -> ctypes.CDLL:
    """The library with its signatures; calls through it let other Python threads run. Raises EngineUnavailable."""
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


def _describe(line: NDArray[np.uint8]) -> _Tensor:
    """A record that borrows the line's pixels."""
    shape = (ctypes.c_int * 8)(*line.shape)
    return _Tensor(line.ctypes.data, shape, line.ndim, ord("u"), 1, 0)


def _take_steps(answer: ctypes.Array[_Tensor]) -> Steps:
    """Copies of both output rows, checked. Raises EngineFailed."""
    probabilities, indices = _copy_row(answer[0]), _copy_row(answer[1])
    if probabilities.shape != indices.shape or not (np.isfinite(probabilities).all() and np.isfinite(indices).all()):
        raise EngineFailed(f"Tr returned {probabilities.size} probabilities for {indices.size} steps, or no numbers.")
    return Steps(np.rint(indices).astype(np.int64), probabilities)


def _copy_row(tensor: _Tensor) -> NDArray[np.float32]:
    """A copy of a (1, steps) float32 record, as (steps,). Raises EngineFailed."""
    shape = tuple(tensor.shape[: max(0, min(tensor.ndim, 8))])
    if not tensor.buffer or (tensor.kind, tensor.itemsize) != (ord("f"), 4) or len(shape) != 2 or shape[0] != 1:
        raise EngineFailed(f"Tr returned an array of kind {tensor.kind}, {tensor.itemsize} bytes, shape {shape}.")
    buffer = ctypes.cast(tensor.buffer, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(buffer, shape).reshape(-1).copy()
