"""Choice of the CPU runtime: by setting, by a stored choice, by a proof, or by `ocrsvc optimize`."""

import gc
import logging
import re
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import cv2
import numpy as np
import onnxruntime
import pytest
from models_support import built_in

from ocrsvc.cli import optimize
from ocrsvc.cli.main import run
from ocrsvc.engines.line_recognizer import LineText
from ocrsvc.engines.ppocr import proof_process, runtime_choice, runtime_proof
from ocrsvc.engines.ppocr.engine import PpocrEngine, open_ppocr
from ocrsvc.engines.ppocr.pipeline.network_input import USUAL
from ocrsvc.engines.ppocr.runtime import openvino_session
from ocrsvc.engines.ppocr.runtime.model_cache import ModelCache
from ocrsvc.engines.ppocr.runtime.model_parts import DETECTION, RECOGNITION, Kind
from ocrsvc.engines.ppocr.runtime.open_model import open_model, open_openvino
from ocrsvc.engines.ppocr.runtime.openvino_session import OpenVinoSession
from ocrsvc.engines.ppocr.runtime.providers import CPU, CUDA
from ocrsvc.engines.ppocr.runtime.session import SessionConfig
from ocrsvc.engines.ppocr.runtime_choice import RuntimeChoice, load_choice, store_choice
from ocrsvc.engines.ppocr.runtime_proof import BF16, FP32, INT8, TINY_FIRST, Proof, Runtime
from ocrsvc.errors import EngineUnavailable
from ocrsvc.results import Image, Page, Pixels, ReadTask
from ocrsvc.settings.load import read_settings
from ocrsvc.system.thread_plan import plan_for

PAGES = Path(__file__).parent / "pages"
CHOICE = RuntimeChoice(BF16, INT8, "proved in 3.0 s")


@pytest.fixture(autouse=True)
def _bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO reports bfloat16 support; `ocrsvc optimize` does not change the thread settings of other tests."""
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: True)
    monkeypatch.setattr("ocrsvc.cli.optimize.set_library_environment", lambda _environ: None)


@pytest.mark.parametrize(
    ("int8", "bf16", "chosen"),
    [
        ((1.0, ""), (2.0, ""), BF16),
        ((2.5, ""), (2.0, ""), INT8),
        ((2.5, "it reads otherwise"), (2.0, ""), BF16),
        ((2.5, "it reads otherwise"), (2.0, "a run fails"), FP32),
        ((1.05, ""), (0.8, ""), FP32),  # within the variation of timings
    ],
)
def test_a_clearly_faster_runtime_is_chosen(int8: tuple[float, str], bf16: tuple[float, str], chosen: Runtime) -> None:
    proofs = [Proof(RECOGNITION, runtime, gain, fault=fault) for runtime, (gain, fault) in ((INT8, int8), (BF16, bf16))]
    assert runtime_choice.choose(proofs, "") == RuntimeChoice(FP32, chosen, "")


@pytest.mark.parametrize(
    ("precision", "provider", "wanted"),
    [
        ("auto", "cpu", None),
        ("fp32", "auto", (FP32, FP32)),
        ("int8", "auto", (FP32, INT8)),
        ("bf16", "openvino", (BF16, BF16)),
        ("fp32", "openvino", (Runtime("openvino", "fp32"), Runtime("openvino", "fp32"))),
        ("auto", "openvino", (Runtime("openvino", "auto"), Runtime("openvino", "auto"))),
    ],
)
def test_requested_runtime_is_not_proved(precision: Any, provider: Any, wanted: Any) -> None:
    asked = runtime_choice.requested_choice(precision, provider)
    assert (asked and (asked.detection, asked.recognition)) == wanted


def test_a_stored_choice_is_loaded_where_it_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ModelCache(tmp_path)
    assert load_choice(cache, built_in(), "auto") is None
    assert store_choice(cache, built_in(), "auto", CHOICE)
    assert load_choice(ModelCache(tmp_path), built_in(), "auto") == CHOICE
    assert load_choice(cache, built_in(), "cpu") is None
    assert not store_choice(ModelCache(None), built_in(), "auto", CHOICE)
    with monkeypatch.context() as patched:
        patched.setattr(runtime_choice, "REFERENCE_PAGE", PAGES / "line.png")
        assert load_choice(cache, built_in(), "auto") is None
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: False)
    assert load_choice(cache, built_in(), "auto") is None


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b'{"detection": "fp32", "recognition": "int8", "reason": "an older format"}',
        b'{"detection": {"provider": "npu", "precision": "int4"}, "recognition": {}, "reason": "newer"}',
    ],
)
def test_a_choice_in_another_format_is_ignored(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ModelCache(tmp_path)
    monkeypatch.setattr(cache, "find", lambda _name, _key: content)
    assert load_choice(cache, built_in(), "auto") is None


PROOFS = [Proof(DETECTION, BF16, 2.0), Proof(RECOGNITION, INT8, 2.0)]


def chosen(cache: ModelCache, prover: Mock) -> tuple[Runtime, Runtime] | None:
    choice = runtime_choice.choose_runtime(built_in(), SessionConfig("cpu"), cache, prover)
    return None if choice is None else (choice.detection, choice.recognition)


def test_proof_is_made_once_by_the_first_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    prover = Mock(return_value=PROOFS)
    threads = [threading.Thread(target=lambda: chosen(ModelCache(tmp_path), prover)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chosen(ModelCache(tmp_path), prover) == (BF16, INT8)
    prover.assert_called_once()
    assert [message[:14] for message in caplog.messages] == ["Measuring once", "Chosen: detect"]


def test_unwritable_cache_is_logged_after_a_proof(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    for cache in (ModelCache(None), ModelCache(blocked)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert chosen(cache, Mock(return_value=PROOFS)) == (BF16, INT8)
        assert "every start proves the choice of runtime again" in caplog.text


@pytest.mark.parametrize("program", ["/missing", "/bin/false"])
def test_runtimes_are_compared_here_if_the_child_fails(
    program: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    monkeypatch.setattr(proof_process, "prove_runtimes", lambda *_args: PROOFS)
    assert proof_process.prove_in_child(built_in(), SessionConfig("cpu"), ModelCache(None)) == PROOFS
    assert "so they are compared here" in caplog.text


LINE = np.array([[10, 10], [110, 10], [110, 30], [10, 30]], np.float32)
SINGLE = [LineText(text, 0.97) for text in ("No.17", "one", "two", "three", "a b")]


class CandidateDoubles:
    """Doubles of the candidate runtimes with results set by the test; FP32 finds two lines and reads SINGLE."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: object, read: object) -> None:
        self.found = {FP32: [LINE, LINE + 500], BF16: found}
        self.read = {FP32: SINGLE, BF16: read, TINY_FIRST: SINGLE}
        monkeypatch.setattr(runtime_proof, "open_model", self.open)
        monkeypatch.setattr(runtime_proof, "open_tiny_first", lambda *_opened: TINY_FIRST)
        monkeypatch.setattr(runtime_proof, "_find", lambda _page, runner: self.answer(self.found[runner]))
        monkeypatch.setattr(runtime_proof, "read_lines", lambda _part, _crops, runner: self.answer(self.read[runner]))

    def open(self, _part: object, config: SessionConfig, _cache: ModelCache) -> Any:
        return Runtime(config.provider, config.precision)

    def answer(self, given: Any) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    def fault(self, kind: Kind, pages: Sequence[Pixels] | None = None) -> str:
        proofs = runtime_proof.prove_runtimes(built_in(), SessionConfig("cpu"), ModelCache(None), pages)
        return next(proof.fault for proof in proofs if proof.model == kind)


REFERENCE, USER_PAGES = None, [np.full((640, 640, 3), 255, np.uint8)]
FAILURE = RuntimeError("could not create a primitive")


def read_as(text: str, confidence: float = 0.97) -> list[LineText]:
    return [*SINGLE[:-1], LineText(text, confidence)]


@pytest.mark.parametrize(
    ("kind", "answer", "pages", "fault"),
    [
        (DETECTION, [LINE + 500, LINE + 2.5], REFERENCE, ""),
        (DETECTION, [LINE + 500, LINE + 3.5], REFERENCE, "too much differs"),
        (DETECTION, [LINE], REFERENCE, "too much differs"),
        (DETECTION, [LINE, LINE + 500, LINE + 200], REFERENCE, "too much differs"),
        (DETECTION, [LINE], USER_PAGES, "too much differs"),
        (DETECTION, FAILURE, REFERENCE, "could not create a primitive"),
        (RECOGNITION, read_as("a b", 0.93), REFERENCE, ""),
        (RECOGNITION, read_as("a b", 0.9), REFERENCE, "confidence differs by 0.07"),
        (RECOGNITION, read_as("a b", 0.9), USER_PAGES, ""),  # 0.01 on average
        (RECOGNITION, read_as("a c"), USER_PAGES, "too much differs"),
    ],
)
def test_a_candidate_must_agree_with_single_precision(
    kind: Kind, answer: Any, pages: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, read = (answer, SINGLE) if kind == DETECTION else ([], answer)
    said = CandidateDoubles(monkeypatch, found, read).fault(kind, pages)
    assert fault in said
    assert bool(said) is bool(fault)


def test_one_percent_of_characters_may_differ_on_user_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    doubles = CandidateDoubles(monkeypatch, [], [*SINGLE[:-1], LineText("x" * 199 + "y", 0.97)])
    doubles.read[FP32] = [*SINGLE[:-1], LineText("x" * 200, 0.97)]
    assert doubles.fault(RECOGNITION, USER_PAGES) == ""
    assert doubles.fault(RECOGNITION, REFERENCE) == "too much differs"


def test_recognizer_with_too_few_readable_lines_uses_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = [*SINGLE[:4], LineText("&", 0.3)]
    doubles = CandidateDoubles(monkeypatch, [], noise)
    doubles.read[FP32] = noise
    assert "too few lines" in doubles.fault(RECOGNITION)


def test_single_precision_must_open_and_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    doubles = CandidateDoubles(monkeypatch, [], SINGLE)
    doubles.found[FP32] = FAILURE
    with pytest.raises(RuntimeError, match="primitive"):
        doubles.fault(DETECTION)

    def open_double(_part: object, config: SessionConfig, _cache: ModelCache) -> Runtime:
        if config.precision in broken:
            raise RuntimeError("no such instruction")
        return Runtime(config.provider, config.precision)

    monkeypatch.setattr(runtime_proof, "open_model", open_double)
    broken = {"bf16"}
    opened = runtime_proof.open_candidates(built_in()[1], SessionConfig("cpu"), ModelCache(None))
    assert list(opened) == [FP32, INT8]
    assert "no such instruction" in caplog.text
    broken = {"fp32"}
    with pytest.raises(RuntimeError, match="instruction"):
        runtime_proof.open_candidates(built_in()[1], SessionConfig("cpu"), ModelCache(None))


def test_broken_openvino_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(openvino_session, "is_installed", lambda: True)
    monkeypatch.setattr(openvino_session, "core", lambda: SimpleNamespace().Core())
    openvino_session.computes_bf16.cache_clear()
    try:
        assert not openvino_session.computes_bf16()
    finally:
        openvino_session.computes_bf16.cache_clear()
    assert "OpenVINO is installed but does not work" in caplog.text


def test_openvino_that_is_not_installed_or_without_bf16_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SessionConfig("cpu", provider="openvino", precision="bf16")
    monkeypatch.setattr(openvino_session, "is_installed", lambda: False)
    with pytest.raises(EngineUnavailable, match="`openvino` is not installed"):
        open_openvino(built_in()[0], asked, ModelCache(None))
    monkeypatch.setattr(openvino_session, "is_installed", lambda: True)
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: False)
    with pytest.raises(EngineUnavailable, match="does not support bfloat16"):
        open_openvino(built_in()[0], asked, ModelCache(None))


def openvino_double() -> OpenVinoSession:
    compiled = SimpleNamespace(create_infer_request=lambda: None, inputs=(), outputs=(), get_property=lambda _name: "")
    return OpenVinoSession(compiled, {}, 0, USUAL)


@pytest.mark.parametrize("open_one", [lambda: open_model(built_in()[0], SessionConfig("cpu")), openvino_double])
def test_session_is_freed_with_its_last_reference(open_one: Callable[[], Any]) -> None:
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
def test_without_a_gpu_the_stored_choice_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    assert store_choice(ModelCache(tmp_path), built_in(), "auto", RuntimeChoice(FP32, INT8, "stored by the test"))
    settings = read_settings({"OCRSVC_MODEL_CACHE": str(tmp_path), "OCRSVC_ENGINE_THREADS": "1"})
    engine = open_ppocr(settings, plan_for(settings, workers=1))
    engine.close()
    assert (engine.describe().device, engine.describe().precision) == ("cpu", "fp32 detection, int8 recognition")


def test_int8_pages_read_the_same_alone_and_beside_others(tmp_path: Path) -> None:
    engine = PpocrEngine(SessionConfig("cpu", precision="int8"), engine_threads=2, model_cache=tmp_path)
    assert engine.describe().precision == "fp32 detection, int8 recognition"
    handle = engine.open_handle()
    images = [np.asarray(cv2.imread(str(PAGES / name)), np.uint8) for name in ("notice.png", "line.png")]
    tasks = [ReadTask(Image(image, "png")) for image in images]
    together, alone = handle.read(tasks), [handle.read([task])[0] for task in tasks[::-1]][::-1]
    handle.close()
    engine.close()
    assert together == alone
    assert isinstance(together[0], Page)
    assert "Thelibraryclosesat15:00today." in "".join(together[0].text.split())


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder with a small page, a broken PNG, and a text file."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "notice.png").write_bytes((PAGES / "notice.png").read_bytes())
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "notes.txt").write_text("not an image")
    return folder


def test_too_little_text_is_refused(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: False)
    assert run(["optimize", "--pages", str(pages), "--out", str(tmp_path)]) > 0
    said = capsys.readouterr().err
    assert re.search(r"skipped \S*broken.png", said)
    assert "too few to compare" in said
    assert load_choice(ModelCache(tmp_path), built_in(), "auto") is None


@pytest.mark.parametrize("gain", [2.0, 1.0])
def test_optimize_stores_the_winner_or_single_precision(
    gain: float, pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = Proof(RECOGNITION, INT8, gain, count=optimize.MIN_CHARACTERS)
    monkeypatch.setattr(runtime_proof, "prove_runtimes", lambda *_args: [proof])
    assert run(["optimize", "--pages", str(pages / "notice.png"), "--out", str(tmp_path)]) == 0
    printed, choice = capsys.readouterr().out, load_choice(ModelCache(tmp_path), built_in(), "auto")
    assert choice is not None
    assert (choice.detection, choice.recognition) == (FP32, INT8 if gain > 1 else FP32)
    assert "by `ocrsvc optimize` with 1 files" in choice.reason
    assert f"OCRSVC_MODEL_CACHE={tmp_path}" in printed
    assert ("not used" in printed) is (gain == 1.0)


def test_failed_store_of_a_choice_is_reported(
    pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models"
    folder.touch()
    monkeypatch.setattr(openvino_session, "computes_bf16", lambda: False)
    monkeypatch.setattr(optimize, "MIN_CHARACTERS", 20)
    assert run(["optimize", "--pages", str(pages / "notice.png"), "--out", str(folder)]) == 78
    printed = capsys.readouterr()
    assert "kept in" not in printed.out
    assert f"The choice cannot be written to {folder}." in printed.err


@pytest.mark.parametrize(
    ("name", "value"), [("OCRSVC_PRECISION", "fp32"), ("OCRSVC_DEVICE", "cuda"), ("OCRSVC_ENGINE", "fake")]
)
def test_optimize_is_refused_where_nothing_can_be_chosen(
    name: str, value: str, pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert run(["optimize", "--pages", str(pages), "--out", str(tmp_path)]) == 78
    assert load_choice(ModelCache(tmp_path), built_in(), "auto") is None
