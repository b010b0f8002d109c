"""A double of cupy that is as strict as cupy: no operation mixes its arrays with numpy's, and few functions exist.

numpy computes the results. As on a GPU, an operation or index with a numpy array of one or more dimensions raises. So
does a function that is not listed; cupy has each listed one, with the same arguments.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.gpu.arrays import ArrayBackend

SHARED = ("take", "rint", "floor", "clip", "where", "nan_to_num", "concatenate", "abs", "bincount")
MAKERS = ("zeros", "empty", "arange")


class OnGpu(np.ndarray[Any, Any]):
    """An array that refuses operations with numpy arrays."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        refuse_numpy_arrays([*inputs, *kwargs.values()])
        bare = [np.asarray(value) if isinstance(value, OnGpu) else value for value in inputs]
        return on_gpu(getattr(ufunc, method)(*bare, **kwargs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise TypeError(f"numpy.{func.__name__} was called with a GPU array")

    def __getitem__(self, index: Any) -> Any:
        refuse_numpy_arrays([index])
        return on_gpu(np.asarray(self)[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        refuse_numpy_arrays([index, value])
        np.asarray(self)[index] = np.asarray(value)


def on_gpu(array: Any) -> Any:
    return array.view(OnGpu) if isinstance(array, np.ndarray) else array


def refuse_numpy_arrays(values: Any) -> None:
    """Raise TypeError if a value is a numpy array with dimensions."""
    for value in flat(values):
        if isinstance(value, np.ndarray) and not isinstance(value, OnGpu) and value.ndim:
            raise TypeError(f"a numpy array of shape {value.shape} was mixed with GPU arrays")


def flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


class StrictModule:
    """Replaces the module cupy."""

    def asarray(self, array: NDArray[Any]) -> Any:
        return on_gpu(np.array(array))

    def __getattr__(self, name: str) -> Any:
        if name in MAKERS:
            return lambda *args: on_gpu(getattr(np, name)(*args))
        if name not in SHARED:
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            refuse_numpy_arrays([*args, *kwargs.values()])
            bare = [[np.asarray(part) for part in arg] if isinstance(arg, list) else _bare(arg) for arg in args]
            return on_gpu(getattr(np, name)(*bare, **kwargs))

        return call


def _bare(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, OnGpu) else value


class StrictArrays(ArrayBackend):
    """The array backend that uses `StrictModule`."""

    xp = StrictModule()
    name = "strict"

    def upload(self, array: NDArray[Any]) -> Any:
        return self.xp.asarray(array)

    def download(self, array: Any) -> NDArray[Any]:
        assert isinstance(array, OnGpu)
        return np.array(array)

    def trim(self) -> None:
        pass
