"""A double of cupy where it is stricter than numpy: its arrays mix with no others, and only some functions are there.

numpy computes beneath. What would raise on a GPU raises here: an operation or an index that holds a numpy array of
more than no dimensions, and a function that is not listed (each of those listed is cupy's too, with these arguments).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocrsvc.engines.ppocr.gpu.arrays import ArrayBackend

SHARED = ("take", "rint", "floor", "clip", "where", "nan_to_num", "concatenate", "abs", "bincount")
MAKERS = ("zeros", "empty", "arange")


class OnGpu(np.ndarray[Any, Any]):
    """An array that mixes with none of numpy's."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        refuse_strangers([*inputs, *kwargs.values()])
        bare = [np.asarray(value) if isinstance(value, OnGpu) else value for value in inputs]
        return on_gpu(getattr(ufunc, method)(*bare, **kwargs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise TypeError(f"numpy's {func.__name__} was called for an array of the GPU")

    def __getitem__(self, index: Any) -> Any:
        refuse_strangers([index])
        return on_gpu(np.asarray(self)[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        refuse_strangers([index, value])
        np.asarray(self)[index] = np.asarray(value)


def on_gpu(array: Any) -> Any:
    return array.view(OnGpu) if isinstance(array, np.ndarray) else array


def refuse_strangers(values: Any) -> None:
    """Raise TypeError where one of them is an array of numpy's own."""
    for value in flat(values):
        if isinstance(value, np.ndarray) and not isinstance(value, OnGpu) and value.ndim:
            raise TypeError(f"an array {value.shape} of numpy's meets one of the GPU")


def flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


class StrictModule:
    """In the place of cupy."""

    def asarray(self, array: NDArray[Any]) -> Any:
        return on_gpu(np.array(array))

    def __getattr__(self, name: str) -> Any:
        if name in MAKERS:
            return lambda *args: on_gpu(getattr(np, name)(*args))
        if name not in SHARED:
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            refuse_strangers([*args, *kwargs.values()])
            bare = [[np.asarray(part) for part in arg] if isinstance(arg, list) else _bare(arg) for arg in args]
            return on_gpu(getattr(np, name)(*bare, **kwargs))

        return call


def _bare(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, OnGpu) else value


class StrictArrays(ArrayBackend):
    """Arrays over the strict module; see engines.ppocr.gpu.arrays."""

    xp = StrictModule()
    name = "strict"

    def upload(self, array: NDArray[Any]) -> Any:
        return self.xp.asarray(array)

    def download(self, array: Any) -> NDArray[Any]:
        assert isinstance(array, OnGpu)
        return np.array(array)

    def trim(self) -> None:
        pass
