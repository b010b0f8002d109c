"""Workers are assigned to GPUs and see only their own GPU, in the worker table and under a real gunicorn."""

import io
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from support import data_of, run_server, wait_until

from ocrsvc.errors import SettingsError
from ocrsvc.settings.load import read_settings
from ocrsvc.system.gpu import find_gpus, pin_gpu
from ocrsvc.system.thread_plan import gpus_for
from ocrsvc.telemetry.worker_table import Granted, Head, Reason, Snapshot, State, WorkerTable
from ocrsvc.worker.replacement_controller import ReplacementController, next_grant

PART = "MIG-0de00000-0000-0000-0000-000000000002"


@pytest.mark.parametrize(("asked", "shown", "gpus"), data_of("gpu_devices")["found"])
def test_gpus_are_those_in_the_setting_or_visible_ones(
    asked: list[str], shown: str | None, gpus: list[str], tmp_path: Path
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia7", "nvidiactl", "null"):
        (tmp_path / name).touch()
    assert find_gpus(asked, {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}, tmp_path) == tuple(gpus)


@pytest.mark.parametrize("named", ["first", "0;1", "-1", "all,0", "GPU", "0,GPU-"])
def test_invalid_gpu_name_is_refused(named: str) -> None:
    with pytest.raises(SettingsError, match=r"OCRSVC_GPUS is .*accepted is all, or GPU numbers and UUIDs"):
        read_settings({"OCRSVC_GPUS": named})


@pytest.mark.parametrize(
    ("device", "provider"), [("cpu", "cuda"), ("cpu", "tensorrt"), ("cuda", "cpu"), ("auto", "rocm")]
)
def test_provider_that_contradicts_the_device_is_refused(device: str, provider: str) -> None:
    with pytest.raises(SettingsError, match="OCRSVC_PROVIDER is"):
        read_settings({"OCRSVC_DEVICE": device, "OCRSVC_PROVIDER": provider})


def test_engine_on_the_cpu_uses_no_gpu() -> None:
    assert gpus_for(read_settings({"OCRSVC_GPUS": "0,1", "OCRSVC_DEVICE": "cpu"})) == ()
    assert gpus_for(read_settings({"OCRSVC_GPUS": "0,1", "OCRSVC_PROVIDER": "cpu"})) == ()
    assert gpus_for(read_settings({"OCRSVC_ENGINE": "fake"})) == ()
    assert gpus_for(read_settings({"OCRSVC_GPUS": "0,1"})) == ("0", "1")


def test_pinned_process_sees_one_gpu_in_nvidia_smi_order() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    pin_gpu(environ, "1")
    assert environ == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    kept = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    pin_gpu(kept, PART)
    assert kept == {"CUDA_VISIBLE_DEVICES": PART, "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}


class TableOfWorkers:
    """Workers that exist only in the worker table."""

    def __init__(self, gpus: int) -> None:
        self.worker_table = WorkerTable()
        self.controller = ReplacementController(self.worker_table, clock=lambda: 100.0)
        self.gpus = [f"GPU-{gpu}" for gpu in range(gpus)]

    def fork(self) -> int:
        worker: Any = SimpleNamespace(tmp=io.BytesIO())
        self.controller.before_fork(worker, self.gpus)
        self.worker_table.entry(worker.slot_number).state = State.READY
        return int(worker.slot_number)

    def gpu(self, slot: int) -> int:
        return int(self.worker_table.entry(slot).gpu)


@pytest.mark.parametrize("leaver", range(4))
def test_successor_gets_the_gpu_of_its_predecessor(leaver: int) -> None:
    simulated = TableOfWorkers(2)
    for _ in range(4):
        simulated.fork()
    simulated.worker_table.entry(leaver).granted = Granted.SUCCESSOR
    assert simulated.gpu(simulated.fork()) == simulated.gpu(leaver)


def test_gpu_numbers_stay_valid_after_a_reload_with_other_gpus() -> None:
    simulated = TableOfWorkers(2)
    old = [simulated.fork() for _ in range(2)]
    simulated.gpus = ["GPU-1", "GPU-7"]
    new = [simulated.fork() for _ in range(2)]
    names = [simulated.controller.gpus[simulated.gpu(slot)] for slot in (*old, *new)]
    # GPU-1 already has a worker, and GPU-0 is no longer configured.
    assert names == ["GPU-0", "GPU-1", "GPU-7", "GPU-1"]
    for slot in (*old, *new):
        simulated.worker_table.entry(slot).gpu_bytes = 10**slot
    assert simulated.worker_table.gpu_use_of_others(new[1]) == (10 ** old[1], True)
    assert simulated.worker_table.gpu_use_of_others(new[0]) == (0, True)


@pytest.mark.parametrize(("gpu", "kind"), [(0, Granted.DRAIN_FIRST), (1, Granted.SUCCESSOR)])
def test_successor_needs_room_on_its_own_gpu(gpu: int, kind: Granted) -> None:
    first = Snapshot(0, State.READY, gpu=0, gpu_read_s=5.0, gpu_free_bytes=50)
    workers = [first, replace(first, slot=1, gpu=1, gpu_free_bytes=500)]
    workers[gpu] = replace(workers[gpu], reason=Reason.RELOAD)
    grant = next_grant(Head(base=2, gpu_footprint_bytes=100), workers, 10.0)
    assert grant is not None
    assert grant[1] is kind


def test_new_worker_is_pinned_to_the_gpu_that_lacks_one() -> None:
    named = "GPU-aaaa,GPU-bbbb"
    with run_server({"OCRSVC_GPUS": named, "OCRSVC_WORKERS": "4", "OCRSVC_ENGINE_THREADS": "1"}) as server:
        server.wait_for("READY in", count=4)
        lines = [line.rpartition("Slot ")[2] for line in server.lines if "computes on GPU" in line]
        assert sorted(lines) == [f"{slot} computes on GPU GPU-{'ab'[slot % 2] * 4}" for slot in range(4)]
        gone = workers(server.url)[2]
        os.kill(gone["pid"], signal.SIGKILL)
        server.wait_for("READY in", count=5)

        def is_replaced() -> bool:
            pids = [worker["pid"] for worker in workers(server.url)]
            return len(pids) == 4 and gone["pid"] not in pids

        wait_until(is_replaced, "the worker is replaced")
        found = workers(server.url)
    assert Counter(worker["card"] for worker in found) == {0: 2, 1: 2}
    pinned = Counter(line.rpartition(" ")[2] for line in server.lines if "computes on GPU" in line)
    assert pinned == {"GPU-aaaa": 3, "GPU-bbbb": 2}


def workers(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = requests.get(f"{url}/ops/workers", timeout=20).json()["workers"]
    return found
