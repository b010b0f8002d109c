"""What the models are computed with: by name, by an earlier choice, or by a proof, with candidates that are doubles."""

from __future__ import annotations

import errno
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from models_support import built_in

from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr import runtime_proof
from ocrsvc.engines.ppocr.engine import open_ppocr
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL
from ocrsvc.engines.ppocr.runtime import openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, built_in_part
from ocrsvc.engines.ppocr.runtime.open_model import open_model, open_openvino
from ocrsvc.engines.ppocr.runtime.openvino_session import OpenVinoSession
from ocrsvc.engines.ppocr.runtime.providers import CPU, CUDA
from ocrsvc.engines.ppocr.runtime.runtimes import (
    BF16,
    FP32,
    INT8,
    Proof,
    Runtime,
    RuntimeChoice,
    candidates,
    choice_key,
    load_choice,
    named,
    quickest,
    store_choice,
)
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime_proof import (
    choose_runtime,
    outline_fault,
    text_fault,
    time_in_turn,
)
from ocrsvc.errors import EngineUnavailable
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for

CHOICE = RuntimeChoice(BF16, INT8, "proved in 3.0 s")


@pytest.fixture(autouse=True)
def _bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine computes in bfloat16 under OpenVINO."""
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: True)


@pytest.mark.parametrize(
    ("int8", "bf16", "chosen"),
    [
        ((1.0, ""), (2.0, ""), BF16),
        ((2.5, ""), (2.0, ""), INT8),
        ((2.5, "it reads otherwise"), (2.0, ""), BF16),
        ((2.5, "it reads otherwise"), (2.0, "a run fails"), FP32),
        ((1.05, ""), (0.8, ""), FP32),  # within what timings vary by
    ],
)
def test_the_quickest_that_reads_alike_is_chosen_where_it_is_clearly_quicker(
    int8: tuple[float, str], bf16: tuple[float, str], chosen: Runtime
) -> None:
    proofs = [Proof(RECOGNITION, runtime, gain, fault=fault) for runtime, (gain, fault) in ((INT8, int8), (BF16, bf16))]
    assert quickest(proofs, RECOGNITION) == chosen
    assert quickest(proofs, DETECTION) == FP32


@pytest.mark.parametrize(
    ("precision", "provider", "wanted"),
    [
        ("auto", "auto", None),
        ("auto", "cpu", None),
        ("fp32", "auto", (FP32, FP32)),
        ("int8", "auto", (FP32, INT8)),
        ("bf16", "auto", (BF16, BF16)),
        ("bf16", "openvino", (BF16, BF16)),
        ("fp32", "openvino", (Runtime("openvino", "fp32"), Runtime("openvino", "fp32"))),
        ("auto", "openvino", (Runtime("openvino", "auto"), Runtime("openvino", "auto"))),
    ],
)
def test_what_settings_name_is_not_proved(precision: Any, provider: Any, wanted: Any) -> None:
    asked = named(precision, provider)
    assert (asked and (asked.detection, asked.recognition)) == wanted


def test_bf16_is_tried_where_openvino_computes_in_it_and_was_not_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: True)
    assert candidates(DETECTION, "auto") == [FP32, BF16]
    assert candidates(RECOGNITION, "auto") == [FP32, INT8, BF16]
    assert candidates(RECOGNITION, "cpu") == [FP32, INT8]
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: False)
    assert candidates(DETECTION, "auto") == [FP32]


def test_a_choice_comes_back_as_it_was_stored_and_only_for_its_own_versions(tmp_path: Path) -> None:
    cache, key = ModelCache(tmp_path), choice_key(built_in(), "auto", b"page")
    assert load_choice(cache, "runtime", key) is None
    assert store_choice(cache, "runtime", key, CHOICE)
    assert load_choice(ModelCache(tmp_path), "runtime", key) == CHOICE
    for other in (choice_key(built_in(), "cpu", b"page"), choice_key(built_in(), "auto", b"another page")):
        assert load_choice(cache, "runtime", other) is None
    assert not store_choice(ModelCache(None), "runtime", key, CHOICE)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"detection": "fp32", "recognition": "int8", "reason": "an older format"}',
        b'{"detection": {"provider": "cpu", "precision": "fp32"}}',
        b'{"detection": {"library": "cpu"}, "recognition": {}, "reason": ""}',
        b'{"detection": {"provider": "npu", "precision": "int4"}, "recognition": {}, "reason": "newer"}',
    ],
)
def test_a_stored_choice_of_another_format_counts_as_absent(content: bytes, tmp_path: Path) -> None:
    cache, key = ModelCache(tmp_path), choice_key(built_in(), "auto", b"page")
    with cache.new_file("runtime", key, 0) as file:
        assert file is not None
        file.write_bytes(content)
    assert cache.find("runtime", key) == content
    assert load_choice(cache, "runtime", key) is None


def test_a_stored_choice_whose_library_does_not_load_here_is_proved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, key = ModelCache(tmp_path), choice_key(built_in(), "auto", b"page")
    assert store_choice(cache, "runtime", key, CHOICE)
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: False)
    assert load_choice(cache, "runtime", key) is None


def test_a_choice_that_the_disk_has_no_room_for_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert not store_choice(ModelCache(tmp_path), "runtime", choice_key(built_in(), "auto", b"page"), CHOICE)
    assert not list(tmp_path.glob("*"))


class Prover:
    """A proof that counts how often it is made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, _parts: object, _config: SessionConfig, _cache: ModelCache) -> RuntimeChoice:
        self.made += 1
        return CHOICE


def test_the_proof_is_made_once_by_whoever_comes_first(tmp_path: Path) -> None:
    prover = Prover()
    threads = [
        threading.Thread(target=lambda: choose_runtime(built_in(), SessionConfig("cpu"), ModelCache(tmp_path), prover))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert choose_runtime(built_in(), SessionConfig("cpu"), ModelCache(tmp_path), prover) == CHOICE
    assert prover.made == 1


def test_without_a_cache_the_proof_is_made_and_the_log_says_that_it_will_be_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for cache in (ModelCache(None), ModelCache(blocked)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert choose_runtime(built_in(), SessionConfig("cpu"), cache, Prover()) == CHOICE
        assert "proved again at each start" in caplog.text


def test_a_lock_that_others_hold_is_not_waited_for_longer_than_said(tmp_path: Path) -> None:
    with ModelCache(tmp_path).locked("runtime", 1.0) as mine, ModelCache(tmp_path).locked("runtime", 0.0) as other:
        assert (mine, other) == (True, False)
    with ModelCache(tmp_path).locked("runtime", 0.0) as free:
        assert free


@pytest.fixture
def clock() -> Callable[[], float]:
    """Every look at it takes a second."""
    ticks: Iterator[int] = count()
    return lambda: float(next(ticks))


def test_runs_are_timed_in_turn_and_the_first_round_is_not_counted(clock: Callable[[], float]) -> None:
    ran: list[str] = []
    runs = {name: [lambda name=name: ran.append(name)] * 2 for name in ("one", "other")}
    assert time_in_turn(runs, rounds=2, most_s=1e9, clock=clock) == {"one": (1.0, 1.0), "other": (1.0, 1.0)}
    assert ran == ["one", "other"] * 6


def test_timing_ends_when_its_time_is_over_but_not_before_one_round(clock: Callable[[], float]) -> None:
    ran: list[str] = []
    time_in_turn({"one": [lambda: ran.append("one")]}, rounds=9, most_s=0.0, clock=clock)
    assert len(ran) == 2


LINE = np.array([[10, 10], [110, 10], [110, 30], [10, 30]], np.float32)


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ([LINE + 500, LINE + 3], ""),
        ([LINE], "finds 1 lines instead of 2"),
        ([LINE, LINE + 506], "6.0 px elsewhere"),
    ],
)
def test_lines_must_be_found_in_the_same_places(other: list[Any], fault: str) -> None:
    said = outline_fault([LINE, LINE + 500], other)
    assert fault in said
    assert bool(said) is bool(fault)


OWN, OTHERS = True, False


@pytest.mark.parametrize(
    ("read", "is_own_page", "fault"),
    [
        ([("No.17", 0.93), ("one", 0.99)], OWN, ""),
        ([("No.17", 0.97), ("on", 0.99)], OWN, "reads 1 of 2 lines otherwise"),
        ([("No.17", 0.9), ("one", 0.99)], OWN, "a line's confidence is 0.07"),
        # Other models are judged without spaces and by their confidence on the whole.
        ([("No. 17", 0.9), ("one", 0.99)], OTHERS, ""),
        ([("No.71", 0.97), ("one", 0.99)], OTHERS, "reads 1 of 2 lines otherwise"),
        ([("No.17", 0.8), ("one", 0.9)], OTHERS, "confidence is 0.13"),
    ],
)
def test_lines_must_be_read_alike_and_as_surely(read: list[tuple[str, float]], is_own_page: bool, fault: str) -> None:
    single = [LineText("No.17", 0.97), LineText("one", 0.99)]
    said = text_fault(single, [LineText(*line) for line in read], is_own_page=is_own_page)
    assert fault in said
    assert bool(said) is bool(fault)


def test_a_recognizer_for_which_the_page_has_too_little_to_read_computes_in_single_precision() -> None:
    part, crops = built_in()[1], [np.full((48, 96), 255, np.uint8)] * 9
    runner = open_model(part, SessionConfig("cpu"))
    proofs = runtime_proof.prove_recognition(part, {FP32: runner, INT8: runner}, crops)
    assert quickest(proofs, RECOGNITION) == FP32
    assert "too little of its script" in proofs[0].fault


def test_a_candidate_that_does_not_open_is_left_out_and_single_precision_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def open_double(_name: str, config: SessionConfig, _cache: ModelCache) -> Runtime:
        if config.precision in broken:
            raise RuntimeError("no such instruction")
        return Runtime(config.provider, config.precision)

    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: True)
    monkeypatch.setattr(runtime_proof, "open_model", open_double)
    broken = {"bf16"}
    opened = runtime_proof.open_candidates(built_in_part(RECOGNITION), SessionConfig("cpu"), ModelCache(None))
    assert list(opened) == [FP32, INT8]
    assert "no such instruction" in caplog.text
    broken = {"fp32"}
    with pytest.raises(RuntimeError):
        runtime_proof.open_candidates(built_in_part(RECOGNITION), SessionConfig("cpu"), ModelCache(None))


class Broken:
    """A candidate that opens, and whose runs fail."""

    takes_pixels, input_format = False, USUAL

    def run(self, _array: object) -> list[Any]:
        raise RuntimeError("could not create a primitive")


def test_a_candidate_whose_runs_fail_is_out_and_the_start_goes_on() -> None:
    page = np.full((64, 128, 3), 255, np.uint8)
    works: Any = SimpleNamespace(
        takes_pixels=False, input_format=USUAL, run=lambda array: [np.zeros((1, 1, *array.shape[2:]))]
    )
    broken: Any = Broken()
    proofs = runtime_proof.prove_detection({FP32: works, BF16: broken}, page)
    assert "could not create a primitive" in proofs[0].fault
    assert quickest(proofs, DETECTION) == FP32
    with pytest.raises(RuntimeError):
        runtime_proof.prove_detection({FP32: broken, BF16: works}, page)


def test_a_library_that_is_installed_and_broken_is_not_tried_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(openvino_session, "is_installed", lambda: True)
    monkeypatch.setattr(openvino_session, "core", lambda: SimpleNamespace().Core())
    openvino_session.computes_bf16.cache_clear()
    try:
        assert not openvino_session.computes_bf16()
    finally:
        openvino_session.computes_bf16.cache_clear()
    assert "OpenVINO is installed and does not work" in caplog.text


def test_openvino_that_is_not_installed_or_without_bf16_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_session, "is_installed", lambda: False)
    asked = SessionConfig("cpu", provider="openvino", precision="bf16")
    with pytest.raises(EngineUnavailable, match="`openvino` is not installed"):
        open_openvino(built_in_part(DETECTION), asked, ModelCache(None))
    monkeypatch.setattr(openvino_session, "is_installed", lambda: True)
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: False)
    with pytest.raises(EngineUnavailable, match="does not compute in bfloat16"):
        open_openvino(built_in_part(DETECTION), asked, ModelCache(None))


def openvino_double() -> OpenVinoSession:
    compiled = SimpleNamespace(create_infer_request=lambda: None, inputs=(), outputs=(), get_property=lambda _name: "")
    return OpenVinoSession(compiled, {}, 0)


def detector() -> Any:
    return open_model(built_in_part(DETECTION), SessionConfig("cpu"))


@pytest.mark.parametrize("open_one", [detector, openvino_double])
def test_a_session_goes_with_its_last_user(open_one: Callable[[], Any]) -> None:
    gc.disable()
    try:
        session = open_one()
        assert session.sessions == (session,)
        seen = weakref.ref(session)
        del session
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_where_no_gpu_works_the_cpu_computes_in_what_was_proved_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    key = choice_key(built_in(), "auto", runtime_proof.read_reference_file())
    assert store_choice(ModelCache(tmp_path), "runtime", key, RuntimeChoice(FP32, INT8, "stored by the test"))
    environ = {"OCRSVC_MODEL_CACHE": str(tmp_path), "OCRSVC_ENGINE_THREADS": "1"}
    settings = read_settings(environ)
    engine = open_ppocr(settings, plan_for(settings, workers=1))
    engine.close()
    assert (engine.describe().device, engine.describe().precision) == ("cpu", "fp32 detection, int8 recognition")
