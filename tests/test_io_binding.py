"""Models run on arrays in place, without a copy, through ONNX Runtime's I/O binding; the CPU replaces the GPU."""

import ctypes
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from numpy.typing import NDArray
from ppocr_support import WatchedSession

from ocrsvc.engines.ppocr.runtime.session import (
    GpuContext,
    Session,
    SessionConfig,
    SessionPool,
    open_gpu_context,
    run_bound,
)
from ocrsvc.errors import EngineFailed


class OnGpu:
    """An array with cupy's interface in numpy's memory."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.shape, self.size = values.shape, values.size
        contiguous = values.flags["C_CONTIGUOUS"]
        self.__cuda_array_interface__ = {
            "data": (values.ctypes.data, False),
            "shape": values.shape,
            "typestr": values.dtype.str,
            "strides": None if contiguous else values.strides,
            "version": 3,
        }


class CpuContext(GpuContext):
    """A GPU context that uses the CPU's memory."""

    device = "cpu"
    address = 0

    def __init__(self) -> None:
        pass

    def wait_for_caller(self) -> None:
        pass

    def wrap(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> Any:
        memory = ctypes.string_at(address, int(np.prod(shape)) * dtype.itemsize)
        array = np.frombuffer(memory, dtype).reshape(shape)
        return SimpleNamespace(array=array, owner=owner)


@pytest.fixture(scope="module")
def doubling() -> onnxruntime.InferenceSession:
    """A model with two outputs: `twice` is 2 x, `place` the index of each row's maximum."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]>
        doubling (float[rows, columns] x) => (float[rows, columns] twice, int64[rows] place)
        { twice = Add(x, x)  place = ArgMax <axis = 1, keepdims = 0> (x) }""")
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


ROWS = np.array([[1, 5, 2], [9, 0, 3]], np.float32)


def test_non_contiguous_array_is_refused(doubling: onnxruntime.InferenceSession) -> None:
    with pytest.raises(EngineFailed, match="not contiguous"):
        run_bound(doubling, CpuContext(), OnGpu(ROWS[:, ::2]), ["twice"])


def test_outputs_have_the_inputs_array_type_and_keep_their_memory(doubling: onnxruntime.InferenceSession) -> None:
    session = Session([(doubling, None)], SessionConfig("cuda"), CpuContext(), precision="fp32")
    assert session.run(ROWS, ["place"])[0].tolist() == [1, 0]
    twice, place = session.run(OnGpu(ROWS))
    assert (twice.array.tolist(), place.array.tolist()) == ([[2, 10, 4], [18, 0, 6]], [1, 0])
    assert (twice.owner[0].numpy().tolist(), place.array.dtype) == (twice.array.tolist(), np.int64)


@pytest.mark.parametrize("failure", [ImportError("libcuda.so.1"), RuntimeError("cudaErrorInsufficientDriver")])
def test_models_run_without_cupy_if_it_fails(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def fail(**_: bool) -> None:
        raise failure

    cupy: Any = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(Stream=fail)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert open_gpu_context() is None


def test_number_of_sessions_limits_concurrent_runs() -> None:
    gate = threading.Event()
    sessions = [WatchedSession(gate), WatchedSession(gate)]
    session_pool = SessionPool(sessions)  # type: ignore[arg-type]  # a stand-in
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(session_pool.run, number) for number in range(8)]
        for session in sessions:
            assert session.entered.acquire(timeout=20)
        gate.set()
        assert [answer.result(20) for answer in answers] == [[number] for number in range(8)]
    assert [session.most for session in sessions] == [1, 1]


def test_run_fails_without_a_free_session_and_a_failed_run_frees_its_session() -> None:
    session_pool = SessionPool([WatchedSession(threading.Event())], timeout_s=0.01)  # type: ignore[list-item]
    with session_pool.acquire(), pytest.raises(EngineFailed, match=r"within 0\.01 s"):
        session_pool.run(np.zeros(1, np.float32))
    with pytest.raises(RuntimeError), session_pool.acquire():
        raise RuntimeError
    with session_pool.acquire() as session:
        assert session.device == "cpu"
