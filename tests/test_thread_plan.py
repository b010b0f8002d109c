"""The thread plan for CPU affinity, quotas and the operator's settings."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import data_of

from ocrsvc.settings.load import read_settings
from ocrsvc.system.cgroup import read_cpus, read_quotas
from ocrsvc.system.thread_plan import ThreadPlan, device_for, plan, set_library_environment


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("cpus", "workers", "engine_threads"),
    [(0.5, 1, 1), (1, 1, 1), (1.5, 1, 2), (2, 1, 2), (4, 1, 4), (7.9, 1, 8), (8, 2, 4), (16, 4, 4), (64, 8, 8)],
)
def test_one_worker_per_four_cpus_and_one_engine_thread_per_cpu(cpus: float, workers: int, engine_threads: int) -> None:
    made = plan(cpus, "cpu", 64)
    assert (made.workers, made.engine_threads, made.library_threads) == (workers, engine_threads, 1)


def test_configured_numbers_are_kept_and_a_gpu_gets_two_workers_for_any_cpus() -> None:
    assert plan(32, "cuda", 64) == ThreadPlan(workers=2, threads=76, engine_threads=4)
    assert plan(8, "cpu", 64, workers=3, threads=7, engine_threads=5) == ThreadPlan(3, 7, 5)
    assert plan(8, "cpu", 64, workers=4).engine_threads == 2


@pytest.mark.parametrize("case", data_of("cpu_quotas"), ids=lambda case: case["name"])
def test_smallest_quota_of_all_groups_counts(case: dict[str, Any], tmp_path: Path) -> None:
    root = machine(tmp_path, case["files"])
    assert list(read_quotas(root)) == case["quotas"]
    assert read_cpus(root) == min([len(os.sched_getaffinity(0)), *case["quotas"]])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has CPU affinity")
def test_affinity_counts_without_quotas(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert read_cpus(tmp_path) == 1.0
    finally:
        os.sched_setaffinity(0, before)


def test_library_threads_are_set_unless_the_operator_set_them() -> None:
    environ = {"OMP_NUM_THREADS": "3"}
    set_library_environment(environ)
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["OPENBLAS_NUM_THREADS"] == environ["MKL_NUM_THREADS"] == "1"


@pytest.mark.parametrize("is_disabled", [True, False])
def test_onnx_runtime_stores_no_telemetry_if_disabled(tmp_path: Path, is_disabled: bool) -> None:
    environ = {
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    if is_disabled:
        set_library_environment(environ)
    subprocess.run([sys.executable, "-c", "import onnxruntime"], check=True, env=environ, timeout=60)
    assert [*tmp_path.rglob("*")] == [] or not is_disabled
    assert [*tmp_path.rglob("onnxruntime.db")] or is_disabled, "ONNX Runtime stores no telemetry by default"


@pytest.mark.parametrize(("device", "runtime", "file", "visible", "expected"), data_of("gpu_devices")["planned"])
def test_gpu_is_planned_if_set_or_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, runtime: bool, file: str, visible: str, expected: str
) -> None:
    (tmp_path / file).touch()
    monkeypatch.setattr("ocrsvc.system.thread_plan.is_installed", lambda _: runtime)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_for(read_settings({"OCRSVC_DEVICE": device}), tmp_path) == expected
    fake = read_settings({"OCRSVC_DEVICE": device, "OCRSVC_ENGINE": "fake"})
    assert device_for(fake, tmp_path) != "cuda" or device == "cuda"
