"""The thread plan follows from CPU affinity and quotas, and from the operator's settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_given_numbers_are_kept_and_a_gpu_gets_two_workers_for_any_cpus() -> None:
    assert plan(32, "cuda", 64) == ThreadPlan(workers=2, threads=76, engine_threads=4)
    assert plan(8, "cpu", 64, workers=3, threads=7, engine_threads=5) == ThreadPlan(3, 7, 5)
    assert plan(8, "cpu", 64, workers=4).engine_threads == 2


KINDS = ("quota", "period")
V1 = "sys/fs/cgroup/cpu,cpuacct/docker/0123/cpu.cfs"


@pytest.mark.parametrize(
    ("cgroup", "files", "quotas"),
    [
        # A container may see its own root only.
        *(
            ("0::/docker/0123\n", {"sys/fs/cgroup/cpu.max": text}, quotas)
            for text, quotas in (("150000 100000\n", [1.5]), ("max 100000\n", []), ("", []), ("-1 100000", []))
        ),
        ("3:cpu,cpuacct:/docker/0123\n", {f"{V1}_quota_us": "75000\n", f"{V1}_period_us": "100000\n"}, [0.75]),
        ("3:cpu,cpuacct:/docker/0123\n", {f"{V1}_quota_us": "-1\n", f"{V1}_period_us": "100000\n"}, []),
        # Of several groups those that rule the CPU.
        (
            "12:cpu,cpuacct:/docker/0123\n9:memory:/b\n3:cpuset:/c\n0::/d:with:colons\n",
            {f"{V1}_quota_us": "100000", f"{V1}_period_us": "100000"}
            | {f"sys/fs/cgroup/{mount}/cpu.cfs_{kind}_us": "1" for mount in ("memory/b", "cpuset/c") for kind in KINDS}
            | {"sys/fs/cgroup/d:with:colons/cpu.max": "300000 100000"},
            [1.0, 3.0],
        ),
    ],
)
def test_quota_is_read_in_cpus(cgroup: str, files: dict[str, str], quotas: list[float], tmp_path: Path) -> None:
    assert list(read_quotas(machine(tmp_path, {"proc/self/cgroup": cgroup, **files}))) == quotas


def test_smallest_quota_of_all_parents_counts_in_v2(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/kubepods/pod/box\n",
        "sys/fs/cgroup/kubepods/pod/box/cpu.max": "max 100000",
        "sys/fs/cgroup/kubepods/pod/cpu.max": "50000 100000",
        "sys/fs/cgroup/kubepods/cpu.max": "800000 100000",
    }
    assert read_cpus(machine(tmp_path, files)) == 0.5


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
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


@pytest.mark.parametrize("is_told", [True, False])
def test_onnx_runtime_stores_no_telemetry_if_disabled(tmp_path: Path, is_told: bool) -> None:
    environ = {
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    if is_told:
        set_library_environment(environ)
    subprocess.run([sys.executable, "-c", "import onnxruntime"], check=True, env=environ, timeout=60)
    assert [*tmp_path.rglob("*")] == [] or not is_told
    assert [*tmp_path.rglob("onnxruntime.db")] or is_told, "ONNX Runtime has changed: is the variable still needed?"


@pytest.mark.parametrize(
    ("device", "runtime", "device_file", "visible", "expected"),
    [
        ("auto", True, "nvidia0", "0", "cuda"),
        ("auto", True, "nvidia0", "", "cpu"),
        ("auto", True, "nvidia0", "-1", "cpu"),
        ("auto", False, "nvidia0", "0", "cpu"),
        ("auto", True, "nvidiactl", "0", "cpu"),
        ("cpu", True, "nvidia0", "0", "cpu"),
        ("cuda", False, "null", "", "cuda"),
    ],
)
def test_gpu_is_planned_if_set_or_visible(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    runtime: bool,
    device_file: str,
    visible: str,
    expected: str,
) -> None:
    (tmp_path / device_file).touch()
    monkeypatch.setattr("ocrsvc.system.thread_plan.is_installed", lambda _: runtime)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_for(read_settings({"OCRSVC_DEVICE": device}), tmp_path) == expected
    assert device_for(read_settings({"OCRSVC_DEVICE": device, "OCRSVC_ENGINE": "fake"}), tmp_path) != "cuda" or (
        device == "cuda"
    )
