"""Faults around an engine's child process fail at most the current image, leak nothing, and are recovered from."""

import errno
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_support import encoded, noise
from isolation_support import (
    a_task,
    crc,
    denylist_of,
    fork_server_of,
    open_files,
    opened_handle,
    pid_of,
    started,
    summary,
)
from support import process_state, wait_until

from ocrsvc.engines.isolated import child
from ocrsvc.engines.isolated.child import Spawner
from ocrsvc.engines.isolated.engine import IsolatedHandle
from ocrsvc.errors import ClientGone, DeadlineExceeded, EngineFailed, EngineUnavailable
from ocrsvc.results import FileTask, Task
from ocrsvc.serving.work_queue import client_gone
from ocrsvc.settings.group import Percentage

sys.path.insert(0, str(Path(__file__).parent / "doubles"))

from simulated_gpu import Mode, SimulatedGpu

MB = 10**6


@pytest.fixture(scope="module")
def plain() -> Iterator[Spawner]:
    yield from started()


def test_child_that_does_not_close_is_killed(plain: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "CLOSE_S", 0.2)
    with opened_handle(spawner=plain) as other, opened_handle(spawner=plain) as handle:
        stopped = pid_of(handle)
        os.kill(stopped, signal.SIGSTOP)
        handle.close()
        wait_until(lambda: not process_state(stopped), "a child that does not close is killed")
        assert summary(other.read([a_task(noise(1))])) == [crc(noise(1))]


@pytest.mark.parametrize(("open_s", "boot_limit_s"), [(0.5, 60.0), (60.0, 0.5)], ids=["worker limit", "child limit"])
def test_child_that_opens_too_slowly_is_killed_and_counts_as_failed(open_s: float, boot_limit_s: float) -> None:
    began_s = time.monotonic()
    with (
        pytest.raises(EngineUnavailable, match="OCRSVC_BOOT_LIMIT_S"),
        opened_handle({"boot_limit_s": open_s}, fake_warm_up_s=50.0, boot_limit_s=boot_limit_s),
    ):
        pass
    assert time.monotonic() - began_s < 40.0


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("module", "name", "code"),
    [
        (os, "memfd_create", errno.EMFILE),
        (os, "ftruncate", errno.ENOMEM),
        (mmap, "mmap", errno.ENFILE),
        (socket, "socketpair", errno.EMFILE),
    ],
    ids=["memfd", "size", "mapping", "socket"],
)
def test_failed_child_start_fails_its_image_leaks_nothing_and_recovers(
    plain: Spawner, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int
) -> None:
    image = a_task(noise(1))
    with opened_handle(spawner=plain) as handle:
        files = open_files()
        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing(code))
            os.kill(pid_of(handle), signal.SIGKILL)
            [answer] = handle.read([image])
            assert isinstance(answer, EngineFailed)
            assert os.strerror(code) in answer.detail
            assert summary(handle.read([image])) == [EngineFailed]
            assert open_files() <= files
        wait_until(lambda: summary(handle.read([image])) == [crc(noise(1))], "a new child reads the image")
        assert denylist_of(handle).is_empty()
        assert open_files() == files


def test_image_without_shared_memory_fails_alone(plain: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_handle(spawner=plain) as handle:
        first = pid_of(handle)
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", failing(errno.ENOMEM))
            [answer] = handle.read([a_task(np.zeros((2000, 2000, 3), np.uint8))])
            assert isinstance(answer, EngineFailed)
            assert "Shared memory for this image cannot be allocated" in answer.detail
            assert summary(handle.read([a_task(noise(1))])) == [crc(noise(1))]
        assert pid_of(handle) == first


@contextmanager
def file_limit(pid: int, count: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("spare", [0, 1])
def test_fork_server_survives_a_lack_of_descriptors(plain: Spawner, spare: int) -> None:
    image = a_task(noise(1))
    with opened_handle(spawner=plain) as handle, opened_handle(spawner=plain) as other:
        fork_server, dead = fork_server_of(handle), pid_of(handle)
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: not process_state(dead), "the dead child is reaped")
        used = {int(file.name) for file in Path(f"/proc/{fork_server}/fd").iterdir()}
        lowest_free = min(set(range(max(used) + 2)) - used)
        with file_limit(fork_server, lowest_free + spare):
            assert summary(handle.read([image])) == [EngineFailed]
            assert summary(other.read([image])) == [crc(noise(1))]
            assert {int(file.name) for file in Path(f"/proc/{fork_server}/fd").iterdir()} == used
        wait_until(lambda: summary(handle.read([image])) == [crc(noise(1))], "a new child reads the image")
        assert fork_server_of(handle) == fork_server


@pytest.fixture(scope="module")
def patient() -> Iterator[Spawner]:
    """A spawner of an engine that takes a minute per image and calls its task's check meanwhile."""
    yield from started(fake_latency_s=60.0)


TASKS = [a_task(noise(1)), FileTask(encoded(noise(1)))]


@pytest.mark.parametrize("task", TASKS, ids=["image", "file"])
def test_late_or_abandoned_page_stops_without_killing_its_child(patient: Spawner, task: Task) -> None:
    with opened_handle({"grace_s": 30.0}, spawner=patient) as handle:
        first, gone_s = pid_of(handle), time.monotonic() + 0.3

        def check() -> None:
            if time.monotonic() >= gone_s:
                raise client_gone()

        assert summary(handle.read([replace(task, check=check, deadline=time.monotonic() + 60.0)])) == [ClientGone]
        assert time.monotonic() - gone_s < 25.0
        began_s = time.monotonic()
        assert summary(handle.read([replace(task, deadline=began_s + 0.6)])) == [DeadlineExceeded]
        assert 0.6 <= time.monotonic() - began_s < 25.0
        assert (pid_of(handle), denylist_of(handle).is_empty()) == (first, True)


@contextmanager
def handle_on_gpu(gpu_home: Path, mode: Mode, gpu_bytes: int | Percentage | None) -> Iterator[IsolatedHandle]:
    """A child with about 90 MB on a GPU of 2000 MB that leaks 10 MB per page."""
    with ExitStack() as until, pytest.MonkeyPatch.context() as patch:
        gpu = SimulatedGpu(gpu_home / "gpu", 2000 * MB)
        until.callback(gpu.close)
        gpu.behave(mode)
        leaking = {"LIBTR_DOUBLE_GPU_BYTES": str(30 * MB), "LIBTR_DOUBLE_GPU_LEAK_BYTES": str(10 * MB)}
        for name, value in {**gpu.environment, **leaking}.items():
            patch.setenv(name, value)
        limits = {"child_gpu_bytes": gpu_bytes, "children": 7}
        yield until.enter_context(opened_handle(limits, engine="tr", tr_home=gpu_home, device="cuda"))


@pytest.mark.parametrize("gpu_bytes", [200 * MB, Percentage(10), None], ids=["bytes", "share", "default"])
def test_child_at_its_gpu_memory_limit_is_replaced(gpu_home: Path, gpu_bytes: int | Percentage | None) -> None:
    page = a_task(np.full((60, 80), 255, np.uint8))
    with handle_on_gpu(gpu_home, Mode.PLAIN, gpu_bytes) as handle:
        first = pid_of(handle)

        def is_replaced() -> bool:
            handle.read([page])
            return pid_of(handle) != first

        wait_until(is_replaced, f"the child is replaced; it has {handle.child.gpu_bytes} bytes of GPU memory")
        assert 0 < handle.child.gpu_bytes < 200 * MB


def test_without_nvml_readings_a_child_has_no_gpu_limit(gpu_home: Path) -> None:
    page = a_task(np.full((60, 80), 255, np.uint8))
    with handle_on_gpu(gpu_home, Mode.HIDES, 100 * MB) as handle:
        first = pid_of(handle)
        for _ in range(5):
            handle.read([page])
        assert (handle.child.gpu_bytes, pid_of(handle)) == (0, first)
