"""`ocrsvc tune`: the candidates, the choice, and a run with a real service."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, ocrsvc

from ocrsvc.cli.main import run
from ocrsvc.cli.tune import Load, Measurement, SettingValues, choose, workers_and_threads
from ocrsvc.errors import OperatorError
from ocrsvc.settings.settings import Settings


def measured(pages_per_s: float, p95_s: float, *, failed: int = 0, workers: int = 1) -> Measurement:
    return Measurement({"workers": workers}, pages_per_s, p95_s / 2, p95_s, failed)


@given(st.floats(0.5, 128), st.sampled_from(["cpu", "cuda"]))
def test_every_candidate_is_valid_and_tried_once(cpus: float, device: str) -> None:
    tried = workers_and_threads(cpus, device)
    assert len({tuple(sorted(knobs.items())) for knobs in tried}) == len(tried) <= 12
    for knobs in tried:
        Settings.model_validate(dict(knobs))
    shared = [(knobs["workers"], knobs["engine_threads"]) for knobs in workers_and_threads(2.0, "cpu")]
    assert shared == [(1, 2), (1, 3), (2, 1), (2, 2)]


def test_fastest_choice_within_the_goal_wins() -> None:
    quick, calm = measured(3, 4), measured(2, 1)
    assert choose([calm, quick], None) is quick
    assert choose([calm, quick], 1.0) is calm
    assert choose([calm, quick], 0.5) is None
    assert choose([measured(3, 4, failed=1)], None) is None
    assert choose([measured(3, 4), calmer := measured(3, 3)], None) is calmer


def tune(
    tmp_path: Path, *flags: str, page: str = str(ROOT / "tests" / "pages" / "line.png"), **env: str
) -> subprocess.CompletedProcess[str]:
    few = ("--seconds", "0.3", "--clients", "4", "--out", tmp_path / "tuned.toml")
    return ocrsvc("tune", page, *few, *flags, **env)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has CPU affinity")
def test_a_run_measures_every_choice_and_writes_settings_that_start(tmp_path: Path) -> None:
    # One core halves the number of candidates.
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        done = tune(tmp_path, OCRSVC_FAKE_LATENCY_S="0.02")
    finally:
        os.sched_setaffinity(0, cores)
    assert done.returncode == 0, done.stderr
    written = Settings.model_validate(tomllib.loads((tmp_path / "tuned.toml").read_text()))
    assert written.workers is not None
    assert written.engine_threads is not None
    rows = [line for line in done.stdout.splitlines() if "workers=" in line]
    # The fake engine only waits 20 ms, so more threads read more images per second.
    best = max(rows, key=lambda row: float(row.split()[0]))
    assert f"workers={written.workers} engine_threads={written.engine_threads}" in best


def test_choice_that_does_not_start_keeps_other_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(knobs: SettingValues, _load: Load) -> Measurement:
        if knobs["engine_threads"] == 8:
            raise OperatorError("It does not start.", "Try `ocrsvc check`.")
        return Measurement(knobs, float(knobs["workers"] * knobs["engine_threads"]), 1.0, 1.0)

    monkeypatch.setattr("ocrsvc.cli.tune.measure", measure)
    monkeypatch.setenv("OCRSVC_DEVICE", "cuda")
    out = tmp_path / "tuned.toml"
    assert run(["tune", str(ROOT / "tests" / "pages" / "line.png"), "--out", str(out)]) == 0
    assert tomllib.loads(out.read_text()) == {"workers": 3, "engine_threads": 4}
    assert "workers=3 engine_threads=8: It does not start." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "given", "words"),
    [
        (["--out", str(ROOT / "pyproject.toml")], {}, "already exists"),
        ([], {"OCRSVC_KEYS": "sqlite:/nowhere/keys.db"}, "would refuse requests"),
        ([], {"page": "nowhere.png"}, "nowhere.png cannot be read"),
        ([], {"OCRSVC_ENGINE": "tr"}, "does not start"),
    ],
    ids=["file exists", "keys", "no page", "no engine"],
)
def test_untunable_settings_are_reported(tmp_path: Path, flags: list[str], given: dict[str, str], words: str) -> None:
    done = tune(tmp_path, *flags, **given)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "tuned.toml").exists()
