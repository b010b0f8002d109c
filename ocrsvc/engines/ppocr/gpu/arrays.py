"""The array module that prepares pixels: cupy on a GPU, otherwise numpy.

All other code in this package calls the array module `xp`, so that the same code runs on both. cupy refuses to mix its
arrays with numpy's: use `upload` or `xp.asarray` to copy to the GPU, and `download` to copy back.
"""

import importlib.util
import logging
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

LOG: Final = logging.getLogger("ocrsvc.ppocr")

# How pixels are prepared: on the GPU if the models run there, on the CPU, or with the GPU code on the CPU (numpy).
Imaging = Literal["auto", "cpu", "numpy"]
Array = Any  # an array of `xp`
MAX_FREE_BYTES: Final = 256 << 20  # free GPU memory that cupy's pool may keep for the next page
MAX_FREE_PINNED_BLOCKS: Final = 16


class ArrayBackend:
    """The array library of the GPU code, and memory transfers; this class uses numpy on the CPU. Thread-safe."""

    xp: Any = np
    name = "numpy"

    def upload(self, array: NDArray[Any]) -> Array:
        """Copy an array to the GPU; the numpy backend returns the array itself."""
        return self.xp.asarray(array)

    def download(self, array: Array) -> NDArray[Any]:
        """Copy an array to memory once it is computed; numpy returns the array itself."""
        return cast("NDArray[Any]", array)

    def trim(self) -> None:
        """Free pool memory beyond MAX_FREE_BYTES; called after each batch, so that a batch's peak is not kept."""


class CupyBackend(ArrayBackend):
    """The current GPU through cupy, on whose default stream all threads work. Raises ImportError."""

    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        self.name = f"cupy {cupy.__version__}"
        self._pool, self._pinned = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()

    def download(self, array: Array) -> NDArray[Any]:
        """Copy an array from the GPU; see ArrayBackend."""
        return cast("NDArray[Any]", self.xp.asnumpy(array))

    def trim(self) -> None:
        """Free unused memory of the pools; see ArrayBackend."""
        if self._pool.free_bytes() > MAX_FREE_BYTES:
            self._pool.free_all_blocks()
        if self._pinned.n_free_blocks() > MAX_FREE_PINNED_BLOCKS:
            self._pinned.free_all_blocks()


def find_backend(imaging: Imaging, device: str) -> ArrayBackend | None:
    """The backend for models on a device ("cpu" or "cuda"); None if pixels are prepared on the CPU."""
    if imaging == "numpy":
        return ArrayBackend()
    if imaging == "cpu" or device == "cpu":
        return None
    if importlib.util.find_spec("cupy") is None:
        LOG.warning("cupy is not installed, so the CPU prepares pixels; install the extra gpu-cuda12 or -cuda13.")
        return None
    try:
        return CupyBackend()
    except ImportError as error:
        LOG.warning("cupy cannot be loaded (%s), so pixels are prepared on the CPU, which is slower.", error)
        return None
