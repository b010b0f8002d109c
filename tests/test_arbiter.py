"""Errors that the arbiter survives, and errors that end a worker or the service."""

import logging
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.errors import HaltServer
from keys_support import WRONG

from ocrsvc.serving.crash_denylist import CrashDenylist
from ocrsvc.serving.request_guard import InFlightTable
from ocrsvc.telemetry.worker_table import State, WorkerTable
from ocrsvc.worker import gunicorn_internals
from ocrsvc.worker.gunicorn_internals import LastingArbiter, PidFile, take_over
from ocrsvc.worker.hung_requests import HungRequests
from ocrsvc.worker.logger import LastingLogger
from ocrsvc.worker.replacement_controller import ReplacementController


def arbiter(pid: int = os.getpid(), pidfile: Path | None = None) -> LastingArbiter:
    """gunicorn's arbiter with ocrsvc's methods, before its first fork."""
    server = Arbiter.__new__(Arbiter)
    server.pid, server.log, server.WORKERS, server.timeout = pid, logging.getLogger("test-arbiter"), {}, 30
    server._num_workers, server.SIG_QUEUE, server.LISTENERS = 0, queue.SimpleQueue(), []
    server.reexec_pid = server.master_pid = server.dirty_arbiter_pid = 0
    server.systemd = False
    cfg = {"graceful_timeout": 30.0, "reuse_port": False, "pidfile": None}
    server.cfg = SimpleNamespace(**cfg, child_exit=lambda _server, worker: worker.ended.append(1))
    service: Any = SimpleNamespace(
        controller=ReplacementController(WorkerTable()),
        hung_requests=HungRequests(InFlightTable(8), CrashDenylist(8, 60.0), server.log),
        each_second=bool,
        grpc_listeners=(),
    )
    take_over(server, service, None if pidfile is None else str(pidfile))
    assert isinstance(server, LastingArbiter)
    return server


def ended_child() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("method", ["manage_workers", "murder_workers", "reap_workers", "handle_usr1"])
@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), MemoryError(), RuntimeError("x")])
def test_repeated_error_is_logged_once_and_the_main_loop_continues(
    method: str, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Arbiter, method, failing(error))
    server = arbiter()
    for _ in range(3):
        getattr(server, method)()
    assert len([record for record in caplog.records if type(error).__name__ in record.message]) == 1


@pytest.mark.parametrize("error", [HaltServer("hopeless"), SystemExit(0)])
def test_errors_that_end_a_process_are_not_caught(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arbiter, "manage_workers", failing(error))
    # In a newly forked worker, `pid` is not the id of the current process.
    server = arbiter(pid=os.getppid())
    with pytest.raises(type(error)):
        server.manage_workers()


def test_a_worker_reaped_elsewhere_is_removed() -> None:
    server, worker = arbiter(), SimpleNamespace(ended=[], slot_number=0)
    server.WORKERS[pid := ended_child()] = worker
    server.kill_worker(pid, signal.SIGTERM)
    assert (server.WORKERS, worker.ended) == ({}, [1])


@pytest.mark.parametrize(("graceful", "first"), [(True, signal.SIGTERM), (False, signal.SIGQUIT)])
def test_sigterm_follows_for_a_worker_that_missed_a_signal(
    graceful: bool, first: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    server = arbiter()
    for pid, state in ((11, State.BOOTING), (12, State.DRAINING)):
        slot = server.controller.worker_table.allocate(0.0)
        server.controller.worker_table.entry(slot).state = state
        server.WORKERS[pid] = SimpleNamespace(slot_number=slot)

    def kill(pid: int, sig: int) -> None:
        sent.append((pid, sig))
        if len(sent) == 3:
            server.WORKERS.clear()

    monkeypatch.setattr(server, "kill_worker", kill)
    monkeypatch.setattr(Arbiter, "reap_workers", lambda _: None)
    monkeypatch.setattr(gunicorn_internals, "_SIGNAL_AGAIN_S", 0.01)
    server.stop(graceful)
    assert sent == [(11, first), (12, first), (11, signal.SIGTERM)]


def test_pid_file_stays_until_a_failed_service_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arbiter, "reload", failing(HaltServer("hopeless")))
    server = arbiter(pidfile=tmp_path / "pid")
    with pytest.raises(HaltServer):
        server.reload()
    assert server.pidfile is not None
    server.cfg.child_exit = lambda server, worker: server.controller.after_exit(server, worker)
    server.cfg.graceful_timeout, server.controller.worker_table.head.boot_failures = 0.0, 3
    pid, slot_number = ended_child(), server.controller.worker_table.allocate(0.0)
    server.WORKERS[pid] = SimpleNamespace(pid=pid, slot_number=slot_number)
    server.stop()
    assert server.WORKERS == {}


def test_umask_is_restored_when_gunicorn_cannot_make_its_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        os.umask(0)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Arbiter, "spawn_worker", fail)
    server = arbiter()
    server.controller.worker_table.head.ever_ready = 1
    before = os.umask(0o027)
    try:
        assert server.spawn_worker() is None
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert server.controller.is_backing_off()


def test_one_failed_reopening_does_not_stop_the_other_logs(tmp_path: Path) -> None:
    cfg = Config()
    cfg.set("errorlog", str(tmp_path / "gone" / "error"))
    cfg.set("accesslog", str(tmp_path / "access"))
    (tmp_path / "gone").mkdir()
    log = LastingLogger(cfg)
    (tmp_path / "gone").rename(tmp_path / "moved")
    (tmp_path / "access").rename(tmp_path / "access.1")
    log.reopen_files()
    log.access_log.info("a line")
    assert "a line" in (tmp_path / "access").read_text()
    for handler in [*log.error_log.handlers, *log.access_log.handlers]:
        handler.close()


def test_gunicorns_access_log_contains_no_key_of_a_query(tmp_path: Path) -> None:
    cfg = Config()
    cfg.set("accesslog", str(tmp_path / "access"))
    log = LastingLogger(cfg)
    log.access_log.info("%(r)s", {"r": f"POST /v1/images:annotate?key={WRONG} HTTP/1.1"})
    assert WRONG not in (tmp_path / "access").read_text()
    for handler in log.access_log.handlers:
        handler.close()


@pytest.mark.parametrize("asked", ["pid", "other", None])
def test_reload_updates_the_pid_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    monkeypatch.setattr(Arbiter, "manage_workers", lambda _: None)
    monkeypatch.setattr(Arbiter, "setup", lambda _server, _app: None)
    server = arbiter(pidfile=tmp_path / "pid")
    server.manage_workers()
    server.cfg.pidfile = asked and str(tmp_path / asked)
    server.cfg.set = lambda name, value: setattr(server.cfg, name, value)
    server.setup(None)
    server.manage_workers()
    assert server.cfg.pidfile is None, "gunicorn would write it"
    assert [found.name for found in tmp_path.iterdir()] == ([asked] if asked else [])


@pytest.mark.parametrize("left", ["99999999999\n", "0", "1" * 5000, "\xff"])
def test_stale_pid_file_is_replaced(tmp_path: Path, left: str) -> None:
    path = tmp_path / "pid"
    path.write_text(left, encoding="latin-1")
    PidFile(str(path)).write()
    assert path.read_text() == f"{os.getpid()}\n"


def test_pid_file_of_another_living_process_is_kept(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(f"{os.getppid()}\n")
    pidfile = PidFile(str(tmp_path / "pid"))
    with pytest.raises(FileExistsError, match="running process"):
        pidfile.write()
    pidfile.unlink()
    assert (tmp_path / "pid").read_text() == f"{os.getppid()}\n"
