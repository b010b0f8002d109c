"""Provider options for ONNX Runtime, and refused settings, with a double of its GPU build."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from gpu_session_double import GPU_BUILD
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail
from support import data_of

from ocrsvc.engines.ppocr.engine import BATCH
from ocrsvc.engines.ppocr.pipeline import detector, recognition_batches
from ocrsvc.engines.ppocr.runtime import open_model as open_model_file
from ocrsvc.engines.ppocr.runtime import prepare_model, providers
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, Kind, built_in_part
from ocrsvc.engines.ppocr.runtime.open_model import open_model
from ocrsvc.engines.ppocr.runtime.providers import CPU, CUDA, TENSORRT, GpuConfig, Profile, choose_provider
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.errors import EngineUnavailable

SMALL = Profile((1, 3, 48, 96), (4, 3, 48, 320), (8, 3, 48, 320))
LARGE = Profile((1, 3, 48, 480), (2, 3, 48, 960), (4, 3, 48, 960))


class Runtime:
    """A double of ONNX Runtime: records the options of each opened session and its runs."""

    def __init__(self) -> None:
        self.opened: list[SimpleNamespace] = []
        self.works = {TENSORRT, CUDA, CPU}
        self.failure: Exception | None = None
        self.no_kernels = False

    def open(self, model: bytes, _options: object, providers: Any, **more: int) -> SimpleNamespace:
        if self.failure is not None and providers[0][0] != CPU:
            raise self.failure
        names = [name for name, _ in providers if name in self.works]
        folder = dict(providers).get(TENSORRT, {}).get("trt_engine_cache_path")
        found = {file.read_text() for file in Path(folder).iterdir()} if folder else set()
        if folder:
            Path(folder, "sm90.engine").write_text(f"the engine {len(self.opened)}")
        made = SimpleNamespace(
            model=model,
            options=dict(providers),
            found=found,
            more=more,
            ran=[],
            get_providers=lambda: names,
            get_inputs=lambda: [SimpleNamespace(name="x")],
            get_outputs=lambda: [SimpleNamespace(name="best")],
            get_modelmeta=lambda: SimpleNamespace(custom_metadata_map={}),
        )

        def run(_outputs: object, feed: dict[str, Any], options: object = None) -> list[Any]:
            if self.no_kernels and names[0] != CPU:
                raise EPFail("no kernel image is available for execution on the device")
            made.ran.append((feed["x"].shape, options))
            return [feed["x"]]

        made.run = run
        self.opened.append(made)
        return made

    def runs(self) -> list[list[tuple[tuple[int, ...], Any]]]:
        """Input shape and options of each session's runs, without the very first run, which only probes the GPU."""
        tried = next(made for made in self.opened if made.ran)
        return [made.ran[made is tried :] for made in self.opened]

    def options(self, provider: str, number: int = 0) -> dict[str, Any]:
        return dict(self.opened[number].options[provider])


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: GPU_BUILD)
    monkeypatch.setattr(onnxruntime, "InferenceSession", made.open)
    monkeypatch.setattr(
        prepare_model, "prepare", lambda *_, half_precision=False, **__: b"half" if half_precision else b"whole"
    )
    monkeypatch.setattr(prepare_model, "input_name", lambda _: "x")
    monkeypatch.setattr(open_model_file, "open_gpu_context", lambda: None)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda **_: None)
    return made


@pytest.mark.parametrize(("device", "provider", "available", "chosen"), data_of("providers"))
def test_provider_is_chosen_or_refused(device: Any, provider: Any, available: list[str], chosen: str) -> None:
    if chosen in ("cpu", "openvino", "cuda", "tensorrt"):
        assert choose_provider(device, provider, available) == chosen
        return
    with pytest.raises(EngineUnavailable, match=chosen):
        choose_provider(device, provider, available)


@pytest.mark.parametrize(
    ("running", "message"),
    [
        (SessionConfig("cpu", precision="fp16"), "OCRSVC_PRECISION=fp16, but the engine runs on the CPU"),
        (SessionConfig("cuda", precision="int8"), "OCRSVC_PRECISION=int8, but the engine runs on a GPU"),
        (SessionConfig("cuda", precision="bf16"), "OCRSVC_PRECISION=bf16, but the engine runs on a GPU"),
        (SessionConfig("cpu", precision="bf16"), "OCRSVC_PRECISION=bf16, but the engine runs with ONNX Runtime"),
        (SessionConfig("cpu", provider="openvino", precision="int8"), "OCRSVC_PRECISION=int8, but .* with OpenVINO"),
        (SessionConfig("cpu", provider="openvino", precision="fp16"), "OCRSVC_PRECISION=fp16, but .* on the CPU"),
    ],
)
def test_unsupported_precision_is_refused(runtime: Runtime, running: SessionConfig, message: str) -> None:
    with pytest.raises(EngineUnavailable, match=message):
        open_model(built_in_part(RECOGNITION), running)
    assert runtime.opened == []


@pytest.mark.parametrize(
    ("running", "works", "failure"),
    [
        (SessionConfig("cuda"), {CPU}, None),
        (SessionConfig("auto", provider="cuda"), {CPU}, None),
        (SessionConfig("auto", precision="fp16"), {CPU}, None),
        (SessionConfig("auto", provider="tensorrt", gpu=GpuConfig(profiles=(SMALL,))), {CUDA, CPU}, None),
        (SessionConfig("cuda"), {CPU}, EPFail("libcudnn.so.9: cannot open shared object file")),
    ],
)
def test_a_requested_provider_must_start_without_fallback(
    runtime: Runtime, running: SessionConfig, works: set[str], failure: Exception | None
) -> None:
    runtime.works, runtime.failure = works, failure
    why = str(failure or "it fell back to")
    with pytest.raises(EngineUnavailable, match=f"could not start its provider .*: {re.escape(why)}"):
        open_model(built_in_part(RECOGNITION), running)


@pytest.mark.parametrize("failure", [None, EPFail("no GPU"), RuntimeError("no driver")])
def test_auto_falls_back_to_cpu(runtime: Runtime, failure: Exception | None, caplog: pytest.LogCaptureFixture) -> None:
    runtime.works, runtime.failure = {CPU}, failure
    opened = open_model(built_in_part(DETECTION), SessionConfig("auto", batched=True, gpu=GpuConfig(streams=2)))
    assert [(one.device, one.precision) for one in opened.sessions] == [("cpu", "fp32")]
    assert "runs on the CPU, because the GPU does not work: " + str(failure or "it fell back to") in caplog.text


@pytest.mark.parametrize("kind", [DETECTION, RECOGNITION])
def test_unsupported_gpu_is_not_used(runtime: Runtime, kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    runtime.no_kernels = True
    assert open_model(built_in_part(kind), SessionConfig("auto", batched=True)).device == "cpu"
    assert "no kernel image" in caplog.text
    with pytest.raises(EngineUnavailable, match="no kernel image"):
        open_model(built_in_part(kind), SessionConfig("cuda"))


def test_cuda_has_its_options_and_a_session_per_stream(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    open_model(built_in_part(DETECTION), SessionConfig("cuda", gpu=GpuConfig(arena_bytes=2**30)))
    assert runtime.options(CUDA) == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "gpu_mem_limit": "1073741824",
    }
    assert (list(runtime.opened[0].options), runtime.opened[0].more) == ([CUDA, CPU], {"enable_fallback": 0})
    addresses = iter((4711, 4712))
    monkeypatch.setattr(open_model_file, "open_gpu_context", lambda: SimpleNamespace(address=next(addresses)))
    open_model(built_in_part(DETECTION), SessionConfig("cuda", gpu=GpuConfig(streams=2)))
    assert [made.options[CUDA]["user_compute_stream"] for made in runtime.opened[1:]] == ["4711", "4712"]


@pytest.mark.parametrize(
    ("precision", "model", "tf32", "reported"),
    [("auto", b"whole", None, "fp32"), ("fp32", b"whole", "0", "fp32"), ("fp16", b"half", None, "fp16")],
)
def test_cuda_computes_in_the_precision_asked_for(
    runtime: Runtime, precision: Any, model: bytes, tf32: str | None, reported: str
) -> None:
    opened = open_model(built_in_part(DETECTION), SessionConfig("cuda", precision=precision))
    assert (runtime.opened[0].model, runtime.options(CUDA).get("use_tf32")) == (model, tf32)
    assert opened.precision == reported
    assert "gpu_mem_limit" not in runtime.options(CUDA)


def test_tensorrt_gets_an_engine_and_a_folder_for_each_profile(runtime: Runtime, tmp_path: Path) -> None:
    running = SessionConfig("cuda", provider="tensorrt", precision="fp16", gpu=GpuConfig(profiles=(SMALL, LARGE)))
    open_model(built_in_part(RECOGNITION), running, ModelCache(tmp_path))
    assert [list(made.options) for made in runtime.opened] == [
        [TENSORRT, CUDA, CPU],
        [TENSORRT, CUDA, CPU],
        [CUDA, CPU],
    ]
    first, second = runtime.options(TENSORRT), runtime.options(TENSORRT, 1)
    folders = [first.pop("trt_engine_cache_path"), second.pop("trt_engine_cache_path")]
    assert [first.pop("trt_timing_cache_path"), second.pop("trt_timing_cache_path")] == folders
    assert len(set(folders)) == 2
    assert all(Path(folder).parent == tmp_path for folder in folders)
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.iterdir())
    assert first == {
        "trt_fp16_enable": True,
        "trt_layer_norm_fp32_fallback": True,
        "trt_context_memory_sharing_enable": True,
        "trt_engine_cache_enable": True,
        "trt_timing_cache_enable": True,
        "trt_profile_min_shapes": "x:1x3x48x96",
        "trt_profile_opt_shapes": "x:4x3x48x320",
        "trt_profile_max_shapes": "x:8x3x48x320",
    }


def test_each_precision_and_profile_has_its_own_cached_engine(runtime: Runtime, tmp_path: Path) -> None:
    def found(precision: Any, profile: Profile) -> set[str]:
        running = SessionConfig("cuda", provider="tensorrt", precision=precision, gpu=GpuConfig(profiles=(profile,)))
        open_model(built_in_part(RECOGNITION), running, ModelCache(tmp_path))
        engines: set[str] = runtime.opened[-2].found
        return engines

    assert [found("fp16", SMALL), found("fp32", SMALL), found("fp16", LARGE)] == [set(), set(), set()]
    assert found("fp16", SMALL) == {"the engine 0"}
    # Without a cache folder, no engine is cached.
    gpu, before = GpuConfig(profiles=(SMALL,)), len(runtime.opened)
    open_model(built_in_part(RECOGNITION), SessionConfig("cuda", provider="tensorrt", gpu=gpu))
    assert not [name for name in runtime.options(TENSORRT, before) if "cache" in name]
    assert runtime.options(TENSORRT, before)["trt_fp16_enable"] is False


def test_tensorrt_libraries_load_in_dependency_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "tensorrt_libs"
    folder.mkdir()
    for name in ("__init__.py", "libnvonnxparser.so.10", "libnvinfer.so.10", "libnvinfer_plugin.so.10", "notes.txt"):
        (folder / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    loaded: list[str] = []
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda **_: loaded.append("cuda"))
    monkeypatch.setattr("ctypes.CDLL", lambda file, **_: loaded.append(Path(file).name))
    providers.load_gpu_libraries("tensorrt")
    assert loaded == ["cuda", "libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10"]


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ((1, 3, 48, 96), 0),
        ((8, 3, 48, 320), 0),
        ((1, 3, 48, 480), 1),
        ((5, 3, 48, 480), 2),
        ((9, 3, 48, 96), 2),
        ((1, 3, 48, 400), 2),
    ],
)
def test_tensorrt_runs_covered_shapes_and_cuda_the_rest(runtime: Runtime, shape: tuple[int, ...], part: int) -> None:
    gpu = GpuConfig(profiles=(SMALL, LARGE))
    opened = open_model(built_in_part(RECOGNITION), SessionConfig("cuda", provider="tensorrt", gpu=gpu))
    opened.run(np.zeros(shape, np.float32))
    assert [len(ran) for ran in runtime.runs()] == [int(number == part) for number in range(3)]


@pytest.mark.parametrize(("width", "shrinks"), [(96, False), (320, True)])
def test_a_run_larger_than_a_batch_shrinks_the_arena(runtime: Runtime, width: int, shrinks: bool) -> None:
    opened = open_model(built_in_part(RECOGNITION), SessionConfig("cuda", gpu=GpuConfig(arena_values=3 * 48 * 100)))
    opened.run(np.zeros((1, 3, 48, width), np.float32))
    (((_, options),),) = runtime.runs()
    assert (options is not None) == shrinks
    if shrinks:
        assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "gpu:0"


def test_a_gpu_that_is_too_small_for_a_batch_is_reported_at_the_start(runtime: Runtime) -> None:
    opened = open_model(built_in_part(RECOGNITION), SessionConfig("cuda"))

    def fail(*_: object) -> None:
        raise EPFail("Failed to allocate memory for requested buffer of size 9")

    runtime.opened[0].run = fail
    with pytest.raises(EngineUnavailable, match=r"(?s)shape \(1, 3, 48, 96\).*OCRSVC_GPU_ARENA_BYTES"):
        opened.warm_up(np.zeros((1, 3, 48, 96), np.float32))


@given(st.sampled_from(recognition_batches.BUCKETS_PX), st.integers(1, 64))
def test_every_batch_that_fits_the_limits_is_in_a_profile(width: int, lines: int) -> None:
    lines = min(lines, recognition_batches.max_lines(width, BATCH, 48))
    covering = [one for one in recognition_batches.profiles(BATCH, 48) if one.covers((lines, 3, 48, width))]
    assert covering
    lines_most, _, height, widest = covering[0].most
    assert lines_most * height * widest <= 2.2 * BATCH.max_cost


@given(st.integers(1, 64), st.integers(1, 64))
def test_every_page_up_to_the_finest_pass_is_in_a_profile_and_its_padding_in_the_grid(down: int, across: int) -> None:
    sides = [detector.padded_side(32 * steps) for steps in (down, across)]
    assert set(sides) <= set(detector.SIDES_PX)
    assert any(profile.covers((1, 3, *sides)) for profile in detector.PROFILES)
    assert all(side / (32 * steps) <= 1.43 or side <= 320 for side, steps in zip(sides, (down, across), strict=True))
