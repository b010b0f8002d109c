"""The service while system calls fail: short versions of `make chaos`, mostly on one running service."""

import errno
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from support import ROOT, Server, run_server, start_server, wait_until
from test_recycling import PAGE, repeated_requests

sys.path.insert(0, str(ROOT / "tests" / "doubles"))

from os_faults import Faults

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: cc is not on PATH")

HEARTBEAT_S = 4.0
_ANSWER_S = 30.0


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def pid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run") / "pid"


@pytest.fixture(scope="module")
def server(faults: Faults, pid_file: Path) -> Iterator[Server]:
    env = {**faults.environment, "OCRSVC_WORKERS": "2", "OCRSVC_PIDFILE": str(pid_file)}
    with run_server(env, ["--timeout", f"{HEARTBEAT_S:.0f}"]) as server:
        server.wait_for("READY in", count=2)
        yield server


def count(server: Server, message: str) -> int:
    return sum(message in line for line in server.lines)


def wait_for_next(server: Server, message: str, before: int) -> None:
    wait_until(lambda: count(server, message) > before, message)


def is_settled(server: Server) -> bool:
    workers = requests.get(f"{server.url}/ops/workers", timeout=_ANSWER_S).json()["workers"]
    return len(workers) == 2 and all(worker["state"] == "ready" and not worker["reason"] for worker in workers)


@pytest.mark.parametrize(
    ("call", "error", "path", "message"),
    [
        ("fork", errno.EAGAIN, "", "No worker can be started: BlockingIOError"),
        ("open", errno.ENOSPC, "wgunicorn-", "No worker can be started: OSError: [Errno 28]"),
        ("epoll_create1", errno.EMFILE, "", "died before it was ready"),
        ("pthread_create", errno.EAGAIN, "", "died before it was ready"),
    ],
)
def test_refused_successor_is_retried_without_failed_requests(
    server: Server, faults: Faults, call: str, error: int, path: str, message: str
) -> None:
    wait_until(lambda: is_settled(server), "both workers are ready")
    (old, _), refused, recycled = server.workers(), count(server, message), count(server, "RECYCLED")
    with repeated_requests(server, keep_alive=False) as statuses:
        with faults.refused(call, error, path=path):
            os.kill(old, signal.SIGUSR2)
            wait_for_next(server, message, refused)
            assert old in server.workers()
        wait_for_next(server, "RECYCLED", recycled)
    assert set(statuses) == {200}
    assert not re.search("exited with code (?!70)", server.log)


def test_jump_of_the_wall_clock_ends_no_worker(server: Server, faults: Faults) -> None:
    wait_until(lambda: is_settled(server), "both workers are ready")
    with repeated_requests(server, keep_alive=False) as statuses:
        for by_s in (-10 * 365 * 86_400, 365 * 86_400):
            (old, _), recycled, timeouts = server.workers(), count(server, "RECYCLED"), count(server, "WORKER TIMEOUT")
            with faults.clock_moved(by_s):
                # One worker starts and one ends while the clock is wrong.
                os.kill(old, signal.SIGUSR2)
                wait_for_next(server, "RECYCLED", recycled)
            assert count(server, "WORKER TIMEOUT") == timeouts
    assert set(statuses) == {200}


def test_pid_file_is_written_when_its_folder_is_back(server: Server, pid_file: Path) -> None:
    wait_until(lambda: is_settled(server), "both workers are ready")
    refused = count(server, "The pid file cannot be written")
    with repeated_requests(server, keep_alive=False) as statuses:
        shutil.rmtree(pid_file.parent)
        server.process.send_signal(signal.SIGHUP)
        wait_for_next(server, "The pid file cannot be written", refused)
        pid_file.parent.mkdir()
        wait_until(pid_file.exists, "the pid file is written")
        wait_until(lambda: is_settled(server), "all workers are replaced")
    assert pid_file.read_text() == f"{server.pid}\n"
    assert [found.name for found in pid_file.parent.iterdir()] == ["pid"]
    assert set(statuses) == {200}


def test_unreadable_configuration_at_sighup_changes_nothing(server: Server, faults: Faults) -> None:
    wait_until(lambda: is_settled(server), "both workers are ready")
    before = server.workers()
    # The path also matches a compiled copy in __pycache__ from an earlier start.
    with faults.refused("open", errno.EMFILE, path="gunicorn.conf."):
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("The reload has failed: SystemExit")
    assert is_settled(server)
    assert server.workers() == before


def test_frozen_worker_is_killed_and_replaced(server: Server) -> None:
    wait_until(lambda: is_settled(server), "both workers are ready")
    stopped, _ = server.workers()
    os.kill(stopped, signal.SIGSTOP)
    with repeated_requests(server, keep_alive=False) as statuses:
        wait_until(lambda: stopped not in server.workers(), "the frozen worker is killed")
        wait_until(lambda: len(server.workers()) == 2, "a new worker starts")
        wait_until(lambda: is_settled(server), "both workers are ready")
    # Only a request that the frozen worker had accepted may fail.
    assert statuses.count(0) <= 1
    assert set(statuses) <= {0, 200}


def waits_of(pid: int) -> int:
    """Return the number of a process's voluntary context switches."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_frozen_service_loses_no_worker(server: Server) -> None:
    wait_until(lambda: is_settled(server), "both workers are ready")
    workers = server.workers()
    for pid in (server.pid, *workers):
        os.kill(pid, signal.SIGSTOP)
    frozen_s = time.monotonic()
    wait_until(lambda: time.monotonic() - frozen_s > HEARTBEAT_S, "every heartbeat is out of date")
    # Resume the arbiter first, while every heartbeat is out of date.
    waits = waits_of(server.pid)
    os.kill(server.pid, signal.SIGCONT)
    wait_until(lambda: waits_of(server.pid) > waits, "the arbiter has looked at its workers")
    for pid in workers:
        os.kill(pid, signal.SIGCONT)
    assert is_settled(server)
    assert server.workers() == workers


def test_full_disk_of_the_log_ends_no_process(faults: Faults, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with start_server({**faults.environment, "OCRSVC_WORKERS": "1"}, ["--log-file", str(log)]) as server:
        wait_until(lambda: log.exists() and "READY in" in log.read_text(), "a worker is ready")
        port = log.read_text().partition("Listening at: http://127.0.0.1:")[2].split()[0]
        url = f"http://127.0.0.1:{port}"
        (old,) = server.workers()
        with faults.refused("write", errno.ENOSPC):
            os.kill(old, signal.SIGUSR2)
            wait_until(lambda: old not in server.workers() and len(server.workers()) == 1, "a new worker starts")
            assert requests.post(f"{url}/v1/ocr", data=PAGE, timeout=_ANSWER_S).status_code == 200
        # A log file that cannot be reopened is opened later.
        log.rename(tmp_path / "log.1")
        with faults.refused("open", errno.ENOSPC, path=str(log)):
            server.process.send_signal(signal.SIGUSR1)
            files = Path(f"/proc/{server.pid}/fd")
            wait_until(
                lambda: tmp_path / "log.1" not in map(Path.resolve, files.iterdir()), "the old log file is closed"
            )
            before = server.workers()
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: not {*before} & {*server.workers()}, "all workers are new")
            assert requests.post(f"{url}/v1/ocr", data=PAGE, timeout=_ANSWER_S).status_code == 200
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.exists() and "RECYCLED" in log.read_text(), "the log has new lines")
        assert server.stop() == 0
