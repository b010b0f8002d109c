"""A version of a model proves itself in processes of its own: what is accepted, and what is refused, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from image_support import png
from models_support import make_fake, make_version

from ocrsvc.engines.model.description import Reference
from ocrsvc.engines.model.version import ModelVersion, VersionName
from ocrsvc.errors import BadModel
from ocrsvc.models.proof.prover import (
    Judgement,
    Measurement,
    PageMeasurement,
    Prover,
    Stopped,
    judge,
    words_f1,
)
from ocrsvc.models.proof.reference_pages import find_reference_pages
from ocrsvc.settings.settings import Settings
from ocrsvc.system.thread_plan import ThreadPlan

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau"
PLAN = ThreadPlan(1, 1, 1)
PAGE = png(8, 8, 255)


def prover(repository: Path, **settings: object) -> Prover:
    """With small budgets."""
    given = {"engine": "fake", "models": repository, "models_proof_s": 20.0, **settings}
    return Prover(Settings.model_validate(given), PLAN, bool)


def a_fake(repository: Path, number: int, text: str = "", **settings: Any) -> ModelVersion:
    """A version of the fake engine whose text differs in one word from that of any other."""
    return make_fake(repository, number, fake_text=text or f"{WORDS} v{number}", **settings)


def test_version_equal_to_the_serving_one_is_accepted(tmp_path: Path) -> None:
    found = prover(tmp_path).prove(a_fake(tmp_path, 2), a_fake(tmp_path, 1))
    assert found.kind is None
    assert "0.95 of the words of fake/1" in found.reason


@pytest.mark.parametrize(
    ("settings", "kind", "reason"),
    [
        ({"fake_text": "omega"}, "text", "reads 0.16 of the words of fake/1"),
        ({"fake_burn_s": 0.1}, "slow", "times the"),
        ({"fake_model_bytes": 150 << 20}, "memory", "at most 1.5 times that is allowed"),
    ],
)
def test_version_worse_than_the_serving_one_is_refused(
    tmp_path: Path, settings: Mapping[str, Any], kind: str, reason: str
) -> None:
    candidate = make_fake(tmp_path, 2, **{"fake_text": f"{WORDS} v2", **settings})
    found = prover(tmp_path).prove(candidate, a_fake(tmp_path, 1))
    assert found.kind == kind
    assert reason in found.reason


PPOCR = '[detection]\nfile = "det.onnx"\n[[recognition]]\nfile = "rec.onnx"\n'
FAKE = 'engine = "fake"\n'


@pytest.mark.parametrize(
    ("model", "files", "limits", "kind", "reason"),
    [
        ('fake_fault = "nonsense"', {}, {}, "nonsense", "invalid numbers"),
        ('fake_fault = "segfault"', {}, {}, "crash", "SIGSEGV"),
        ('fake_fault = "fail"', {}, {}, "failed", "OCRSVC_FAKE_FAULT makes"),
        ("fake_warm_up_s = 1000.0", {}, {"models_proof_s": 1.0}, "late", "within 1 s"),
        ("no_such_setting = 1", {}, {}, "open", "no_such_setting"),
        (f"fake_leak_bytes = {200 << 20}", {}, {"models_proof_memory": "150MiB"}, "memory", "memory limit of 150 MiB"),
        ("", {"weights.bin": b"who"}, {}, "files", "weights.bin"),
        (PPOCR, {"det.onnx": b"\x08\x07", "rec.onnx": b"\x08\x07"}, {}, "open", "It does not open: "),
        ("", {"reference/page.png": PAGE[:40]}, {}, "reference", "page.png"),
    ],
)
def test_faulty_version_is_refused(
    tmp_path: Path, model: str, files: Mapping[str, bytes], limits: Mapping[str, object], kind: str, reason: str
) -> None:
    description = model if model == PPOCR else f"{FAKE}[settings]\n{model}\n"
    candidate = make_version(tmp_path, "fake", 2, description, {**files, "weights.bin": b"whole"})
    if "weights.bin" in files:
        (candidate.folder / "weights.bin").write_bytes(files["weights.bin"])
    found = prover(tmp_path, model_cache=tmp_path / "cache", **limits).prove(candidate, None)
    assert found.kind == kind
    assert reason in found.reason


def test_removed_version_is_not_refused(tmp_path: Path) -> None:
    candidate = a_fake(tmp_path, 2)
    (candidate.folder / "SHA256SUMS").unlink()
    assert prover(tmp_path).prove(candidate, None).kind == "gone"


def test_first_version_is_compared_with_the_reference_texts(tmp_path: Path) -> None:
    serving = a_fake(tmp_path, 1)
    (serving.folder / "SHA256SUMS").unlink()
    pages = {"reference/page.png": PAGE, "reference/page.txt": b"something else"}
    candidate = make_version(tmp_path, "fake", 2, 'engine = "fake"\n', pages)
    found = prover(tmp_path).prove(candidate, serving)
    assert found.kind == "text"
    assert "of the words of the reference texts" in found.reason


def test_a_proof_ends_when_the_worker_does(tmp_path: Path) -> None:
    stopping = Prover(prover(tmp_path).settings, PLAN, lambda: True)
    with pytest.raises(Stopped):
        stopping.prove(a_fake(tmp_path, 1), None)


def test_reference_pages_are_the_versions_then_the_operators_then_built_in(tmp_path: Path) -> None:
    version = a_fake(tmp_path, 1)
    assert [page.name for page in find_reference_pages(tmp_path, version)] == ["reference_page.png"]
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "all.png").write_bytes(PAGE)
    assert [page.name for page in find_reference_pages(tmp_path, version)] == ["all.png"]
    (tmp_path / "fake" / "reference").mkdir()
    (tmp_path / "fake" / "reference" / "own.png").write_bytes(PAGE)
    (tmp_path / "fake" / "reference" / "own.txt").write_text("text")
    [page] = find_reference_pages(tmp_path, version)
    assert (page.name, page.expected, page.read()) == ("own.png", "text", PAGE)
    own = make_version(tmp_path, "fake", 2, 'engine = "fake"\n', {"reference/of_it.png": PAGE})
    assert [page.name for page in find_reference_pages(tmp_path, own)] == ["reference/of_it.png"]
    assert VersionName.of(own).find(tmp_path) == own


@pytest.mark.parametrize(
    ("model", "files", "reason"),
    [
        ('engine = "fake"\n[reference]\nfolder = "pages"\n', {}, "no images in pages/"),
        ('engine = "fake"\n', {"reference/page.txt": b"text"}, "page.txt"),
    ],
)
def test_pages_that_are_missing_are_named(tmp_path: Path, model: str, files: Mapping[str, bytes], reason: str) -> None:
    version = make_version(tmp_path, "fake", 2, model, files)
    with pytest.raises(BadModel, match=reason):
        find_reference_pages(tmp_path, version)


@pytest.mark.parametrize(
    ("wanted", "read", "f1"),
    [
        ("a b c d", "D, c. B A", 1.0),
        ("a b c d", "a b x y", 0.5),
        ("会议 10:30", "会议 10:30", 1.0),
        ("会议", "会", 2 / 3),
        ("ＡＢＣ", "abc", 1.0),
        ("", "anything", None),
    ],
)
def test_words_are_counted_in_any_order(wanted: str, read: str, f1: float | None) -> None:
    assert words_f1([(wanted, read)]) == f1


def measured(text: str = "a b c d", cpu_s: float = 1.0, memory: int = 1 << 30, **page: object) -> Measurement:
    """One page."""
    fields: dict[str, object] = {"name": "p", "expected": None, "text": text, "cpu_s": cpu_s, "wall_s": 9.0, **page}
    return Measurement("m/1", "cpu", memory, (PageMeasurement(**fields),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("candidate", "serving_cpu_s", "kind"),
    [
        (measured(), 1.0, None),
        (measured(cpu_s=1.49), 1.0, None),
        (measured(cpu_s=1.51), 1.0, "slow"),
        # A page that costs nothing is not slower than another.
        (measured(cpu_s=0.004), 0.0001, None),
        (measured(memory=3 << 29), 1.0, None),
        (measured(memory=2 << 30), 1.0, "memory"),
        (measured("a b c x"), 1.0, "text"),
        (measured("a b c d", expected="e f g h"), 1.0, "text"),
        (Judgement("crash", "It crashed."), 1.0, "crash"),
    ],
)
def test_the_bounds_of_the_description_hold(
    candidate: Measurement | Judgement, serving_cpu_s: float, kind: str | None
) -> None:
    assert judge(candidate, measured(cpu_s=serving_cpu_s), Reference()).kind == kind
