"""The array module of the code that prepares pixels: cupy on a GPU, numpy in memory where there is none.

Everything else in this folder is written over `xp`, the array module, so that one code runs on both. cupy refuses to
mix its arrays with numpy's: what goes to the GPU goes through `upload` or `xp.asarray`, what comes back through
`download`.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

LOG: Final = logging.getLogger("ocrsvc.ppocr")

Imaging = Literal["auto", "cpu", "numpy"]
"""Where pixels are prepared: on the GPU if the models run there, in memory, or in memory by the GPU code."""

Array = Any  # an array of the GPU's array module
MAX_FREE_BYTES: Final = 256 << 20
"""Free memory of the GPU that is kept for the next page; what is free beyond it goes back to the GPU."""

MAX_FREE_PINNED_BLOCKS: Final = 16


class ArrayBackend:
    """An array module, and the memory behind it: numpy and its own. All calls may come from any thread."""

    xp: Any = np
    name = "numpy"

    def upload(self, array: NDArray[Any]) -> Array:
        """A copy on the GPU, through a pinned buffer out of a pool of cupy's own; of numpy, the array itself."""
        return self.xp.asarray(array)

    def download(self, array: Array) -> NDArray[Any]:
        """A copy in memory; waits until the array is computed. Of numpy, the array itself."""
        return cast("NDArray[Any]", array)

    def trim(self) -> None:
        """Give back free memory beyond MAX_FREE_BYTES. Call it after each batch, so that a peak does not stay."""


class CupyBackend(ArrayBackend):
    """The present GPU, through cupy, whose default stream all threads use. Raises ImportError."""

    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        self.name = f"cupy {cupy.__version__}"
        self._pool, self._pinned = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()

    def download(self, array: Array) -> NDArray[Any]:
        """See ArrayBackend."""
        return cast("NDArray[Any]", self.xp.asnumpy(array))

    def trim(self) -> None:
        """See ArrayBackend."""
        if self._pool.free_bytes() > MAX_FREE_BYTES:
            self._pool.free_all_blocks()
        if self._pinned.n_free_blocks() > MAX_FREE_PINNED_BLOCKS:
            self._pinned.free_all_blocks()


def find_backend(imaging: Imaging, device: str) -> ArrayBackend | None:
    """What prepares pixels for models on that device ("cpu" or "cuda"); None where it is done without a GPU."""
    if imaging == "numpy":
        return ArrayBackend()
    if imaging == "cpu" or device == "cpu":
        return None
    if importlib.util.find_spec("cupy") is None:
        missing = (
            "cupy is not installed, so pixels are prepared on the CPU; the extras gpu-cuda12 and -cuda13 bring it."
        )
        LOG.warning(missing)
        return None
    try:
        return CupyBackend()
    except ImportError as error:
        LOG.warning("cupy cannot be loaded (%s), so pixels are prepared on the CPU, which costs throughput.", error)
        return None
