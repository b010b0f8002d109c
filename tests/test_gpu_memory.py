"""GPU memory is measured, and its limits apply to workers; pynvml and Tr use doubles/simulated_gpu.h."""

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest
import requests
from image_support import png
from support import Server, run_program, run_server, wait_until

from ocrsvc.system.gpu import GpuMemoryReader, GpuUnreadable, Nvml, Siblings

sys.path.insert(0, str(Path(__file__).parent / "doubles"))

from simulated_gpu import PART_UUID, UUID, Mode, SimulatedGpu

MB = 10**6
GPU_BYTES = 1000 * MB
OTHERS_BYTES = 50 * MB
MODEL_BYTES = 100 * MB

PROBE = """
import ctypes, dataclasses, json, logging, os, sys
from ocrsvc.system.gpu import Siblings, open_gpu_memory_reader

logging.basicConfig(format="%(message)s")
gauge = open_gpu_memory_reader(logging.getLogger(), Siblings())
home = sys.argv[1]
ctypes.CDLL(home + "/libtr.so").tr_init(0, 0, os.fsencode(home + "/ctpn.bin"), None)
reading = gauge and gauge.read(Siblings())
print(json.dumps(reading and dataclasses.asdict(reading) | {"busy_ratio": gauge.read_busy_ratio()}))
"""


@pytest.fixture
def gpu(gpu_home: Path) -> Iterator[SimulatedGpu]:
    made = SimulatedGpu(gpu_home / "gpu", GPU_BYTES)
    made.hold_for_others(OTHERS_BYTES)
    yield made
    made.close()


def probe(home: Path, env: Mapping[str, str]) -> tuple[dict[str, int] | None, str]:
    """Run a process that opens a reader, then a session of 100 MB; returns its readings and its log."""
    done = run_program("-c", PROBE, home, env={"LIBTR_DOUBLE_GPU_BYTES": str(MODEL_BYTES), **env})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("mode", "visible"),
    [
        (Mode.PLAIN, None),
        (Mode.PLAIN, UUID),
        # CUDA accepts a prefix of a UUID that only one GPU has.
        (Mode.PLAIN, f"{UUID[:12]},1"),
        # In a container, NVML hides processes, or reports the host's process ids or no sizes.
        (Mode.HIDES, None),
        (Mode.HOST_IDS, None),
        (Mode.NO_SIZES, None),
        (Mode.DIVIDED, PART_UUID),
        (Mode.DIVIDED | Mode.NO_SIZES, UUID),
    ],
)
def test_process_reads_its_gpu_memory(gpu_home: Path, gpu: SimulatedGpu, mode: Mode, visible: str | None) -> None:
    gpu.behave(mode)
    reading, message = probe(gpu_home, gpu.environment | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
    assert reading == {
        "own_bytes": MODEL_BYTES,
        "used_bytes": MODEL_BYTES + OTHERS_BYTES,
        "free_bytes": GPU_BYTES - MODEL_BYTES - OTHERS_BYTES,
        "total_bytes": GPU_BYTES,
        "busy_ratio": None if Mode.DIVIDED in mode else 0.37,
    }
    assert message == ""


@pytest.mark.parametrize(
    ("mode", "env", "message"),
    [
        (Mode.PLAIN, {"CUDA_VISIBLE_DEVICES": ""}, "which names no GPU"),
        (Mode.PLAIN, {"CUDA_VISIBLE_DEVICES": "7"}, "NVML: Invalid Argument"),
        (Mode.PLAIN, {"CUDA_VISIBLE_DEVICES": "GPU-beef"}, "NVML knows no such GPU"),
        (Mode.PLAIN, {"CUDA_VISIBLE_DEVICES": "MIG-beef"}, "NVML: Not Found"),
        (Mode.FAILS, {}, "NVML: Unknown Error"),
        (Mode.PLAIN, {"DOUBLE_GPU": ""}, "NVML: Driver Not Loaded"),
    ],
)
def test_gpu_fault_is_logged(gpu_home: Path, gpu: SimulatedGpu, mode: Mode, env: dict[str, str], message: str) -> None:
    gpu.behave(mode)
    reading, log = probe(gpu_home, gpu.environment | env)
    assert reading is None
    assert message in log
    assert len(log.splitlines()) == 1


def test_missing_nvml_is_not_logged(gpu_home: Path) -> None:
    assert probe(gpu_home, {}) == (None, "")


def own_bytes(*steps: tuple[int, Siblings]) -> list[int | None]:
    """Return the own_bytes that a reader reports while the GPU's used bytes and the siblings change."""
    nvml = Mock(spec=Nvml, **{"processes.return_value": {}, "busy_ratio.side_effect": GpuUnreadable("not known")})
    nvml.totals.side_effect = [(used, 1000) for used, _ in steps]
    gauge = GpuMemoryReader(nvml, logging.getLogger("test-gpu"), steps[0][1])
    readings = [gauge.read(siblings) for _, siblings in steps[1:]]
    return [reading.own_bytes if reading else None for reading in readings]


def test_memory_of_siblings_is_not_counted() -> None:
    one, none = Siblings(gpu_bytes=100), Siblings()
    assert own_bytes((150, one), (350, one), (250, none)) == [200, 200]
    loading, loaded = Siblings(settled=False), Siblings(gpu_bytes=200)
    assert own_bytes((0, none), (200, none), (400, loading), (410, loaded)) == [200, 200, 210]


def serving(home: Path, gpu: SimulatedGpu, **env: str) -> dict[str, str]:
    """The environment of a service with one worker and Tr's double, which opens two sessions of 100 MB."""
    return {
        "OCRSVC_ENGINE": "tr",
        "OCRSVC_TR_HOME": str(home),
        "OCRSVC_TR_SHARED_SESSIONS": "true",
        "OCRSVC_WORKERS": "1",
        "OCRSVC_ENGINE_THREADS": "2",
        "LIBTR_DOUBLE_SHARED": "1",
        "LIBTR_DOUBLE_GPU_BYTES": str(MODEL_BYTES),
        **gpu.environment,
        **env,
    }


def test_nvml_failure_ends_no_worker_and_memory_of_a_killed_worker_is_freed(gpu_home: Path, gpu: SimulatedGpu) -> None:
    with run_server(serving(gpu_home, gpu)) as server:
        assert "libnvidia-ml" not in Path(f"/proc/{server.pid}/maps").read_text(), "the arbiter must not load NVML"
        wait_until(lambda: "ocrsvc_gpu_utilization_ratio{" in _metrics(server), "the worker reads the GPU")
        assert {line for line in _metrics(server).splitlines() if line.startswith("ocrsvc_gpu_")} == {
            'ocrsvc_gpu_memory_used_bytes{gpu="0"} 2.5e+08',
            'ocrsvc_gpu_memory_total_bytes{gpu="0"} 1e+09',
            'ocrsvc_gpu_utilization_ratio{gpu="0"} 0.37',
        }
        gpu.behave(Mode.FAILS)
        server.wait_for("The GPU cannot be read .*only RSS limits apply")
        assert requests.post(f"{server.url}/v1/ocr", data=png(), timeout=30).status_code == 200
        assert "ocrsvc_gpu_utilization_ratio{" not in _metrics(server)
        gpu.behave(Mode.PLAIN)
        server.wait_for("The GPU can be read again")
        (old,) = server.workers()
        os.kill(old, signal.SIGKILL)
        server.wait_for("READY in", count=2)
        wait_until(lambda: old not in gpu.held, server.log)
        assert sum(gpu.held.values()) == 2 * MODEL_BYTES


@pytest.mark.parametrize(("soft", "message"), [("10%", "SOFT_BYTES is 100000000, but"), ("500MB", "at 0.5 GiB")])
def test_gpu_limits_are_bytes_or_a_share(gpu_home: Path, gpu: SimulatedGpu, soft: str, message: str) -> None:
    with run_server(serving(gpu_home, gpu, OCRSVC_GPU_SOFT_BYTES=soft)) as server:
        server.wait_for(message)


def test_limit_for_a_missing_gpu_is_logged() -> None:
    with run_server({"OCRSVC_GPU_HARD_BYTES": "1GB", "OCRSVC_WORKERS": "1"}) as server:
        server.wait_for("OCRSVC_GPU_HARD_BYTES is set, but this worker cannot read a GPU")


def _metrics(server: Server) -> str:
    return requests.get(f"{server.url}/metrics", timeout=30).text
