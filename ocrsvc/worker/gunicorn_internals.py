"""What this service replaces in gunicorn 27.0.1, or relies on though gunicorn does not promise it: all of it is here.

Besides this file only the documented logger class (logger.py) and gunicorn's exceptions are used. What each piece is
for stands beside it; tests/test_gunicorn.py has a digest of each method that is replaced or relied on, and says what to
do at an upgrade.

gunicorn ends the whole service, with the workers that serve, at any error that its arbiter's main loop does not expect:
a fork, a temporary file or a pid file that is refused. Here each of them is a line in the log, and is tried again
later. The service ends only on a signal, or when no worker was ever ready (see replacement_controller.py).
"""

from __future__ import annotations

import faulthandler
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from gunicorn import pidfile, sock
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import InvalidHeader, NoMoreData
from gunicorn.http.parser import RequestParser
from gunicorn.workers.base import Worker
from gunicorn.workers.gthread import ThreadWorker

from ocrsvc.system.gpu import Siblings
from ocrsvc.telemetry.worker_table import Reason, State, WorkerEntry, WorkerTable
from ocrsvc.worker.connection import Connection, Head, RequestLimits, Sender
from ocrsvc.worker.event_loop import EventLoop
from ocrsvc.worker.hung_requests import HungRequests
from ocrsvc.worker.load_sharing import LoadSharing
from ocrsvc.worker.replacement_controller import BOOT_FAILED, ReplacementController
from ocrsvc.worker.replacement_limits import request_replacement

if TYPE_CHECKING:
    # It is imported where gRPC is served only.
    from ocrsvc.grpc_server.server import RpcServer

# What is refused each second is logged this often.
_LOG_INTERVAL_S: Final = 10.0
_PAUSE_S: Final = 1.0
# A turn of the arbiter's main loop takes about a second.
_STANDSTILL_S: Final = 2.0
# After a second signal that asks to end at once.
_QUICK_STOP_S: Final = 2.0
_STOP_CHECK_S: Final = 0.1
_SIGNAL_AGAIN_S: Final = 1.0
# No exit code of a process is as large; as an exit code it is BOOT_FAILED.
_NEVER: Final = 256 + BOOT_FAILED
_PIDFILE_MODE: Final = 0o644
# Before the arbiter, which gives a stopping service just the graceful timeout, ends it by force.
_STACKS_SHARE: Final = 0.9
_STDERR: Final = 2
# Between two heartbeats, while the gRPC server finishes.
_WAIT_S: Final = 1.0


class HeadParser:
    """gunicorn's parser for one connection, which gets whole heads from the event loop and never reads a socket.

    It gives a request the reader of its body, of which only the framing is looked at, and sends 100-continue itself
    when the application runs, which is when the body is here already.
    """

    def __init__(self, cfg: Any, client: Any) -> None:
        self._parser = RequestParser(cfg, iter(()), client)

    def __call__(self, head: bytes) -> Head:
        """What a head says, or what is wrong with it, and what follows it."""
        self._parser.unreader.unread(head)
        found = Head()
        try:
            request = next(self._parser)
            _check_host(request)
        except Exception as error:  # noqa: BLE001  gunicorn answers it, in the request's thread
            found.error = error
        else:
            found.request, reader = request, request.body.reader
            if isinstance(reader, ChunkedReader):
                found.body_bytes = None
            elif isinstance(reader, LengthReader):
                found.body_bytes = int(reader.length)
            found.expects_continue, request._expected_100_continue = request._expected_100_continue, False  # noqa: SLF001
        found.rest = self._parser.unreader.take_buffered()
        return found


def _check_host(request: Any) -> None:
    """Raises InvalidHeader without the header that RFC 9112 section 3.2 wants."""
    if request.version >= (1, 1) and all(name != "HOST" for name, _ in request.headers):
        raise InvalidHeader("HOST is missing", req=request)


class Heartbeat:
    """When a worker was last alive, in its entry; instead of the file that gunicorn asks for the same.

    A file is born with the wall clock's time and compared with the monotonic clock, and cannot be touched on a disk
    that has become read-only.
    """

    def __init__(self, worker: RecyclingWorker) -> None:
        self._worker = worker

    def last_update(self) -> float:
        """Arbiter: when the worker was last alive, monotonic seconds."""
        return float(self._worker.entry.alive_s)

    def notify(self) -> None:
        """Worker: alive now."""
        self._worker.entry.alive_s = time.monotonic()

    def fileno(self) -> int:
        """A descriptor that gunicorn closes on exec; there is no file, and the listener is closed then anyway."""
        return int(self._worker.sockets[0].fileno())

    def close(self) -> None:
        """Nothing is open."""


class RecyclingWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """The worker class: gunicorn's signals, hooks and WSGI, around an event loop, its threads and a watch.

    Of gthread only `handle_request` is used, which runs the application. Its loop closes connections while it waits
    (2 s for each that lingers), gives threads to silent connections, and keeps clients with a busy worker for ever.
    The arbiter gives a worker its entry before the fork, boot.py its limits after it and its watch when it is READY.

    Attributes:
        most_requests: After which it is replaced; 0 is no limit.
        engine_threads: Requests that the engine works on at once.
        loop, load: From the import of the application on.
        flush_log: Waits until the lines so far are written, for a short while.
        grpc_server: Drains when this worker does; the worker lives on until it is finished, or the time is over.
    """

    worker_table: WorkerTable
    slot_number: int
    limits: RequestLimits
    loop: EventLoop
    load: LoadSharing
    tmp: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        file, self.tmp = self.tmp, Heartbeat(self)
        file.close()
        # With its random part. gunicorn itself would stop at this number, without a successor.
        self.most_requests: int = 0 if self.max_requests == sys.maxsize else self.max_requests
        self.max_requests: int = sys.maxsize
        self.engine_threads: int = self.cfg.threads
        self.flush_log: Callable[[], object] = bool
        self.grpc_server: RpcServer | None = None
        self._draining = threading.Lock()

    @property
    def entry(self) -> WorkerEntry:
        """This worker's entry in the worker table."""
        return self.worker_table.entry(self.slot_number)

    def siblings(self) -> Siblings:
        """The other workers' GPU memory, from the worker table."""
        return Siblings(*self.worker_table.gpu_use_of_others(self.slot_number))

    def init_process(self) -> None:
        """After the fork: make the loop, and go on as every worker does, which ends with `run`."""
        self.load = LoadSharing(self.worker_table, self.slot_number, self.engine_threads)
        parser = partial(HeadParser, self.cfg)
        self.loop = EventLoop(self.cfg, self.log, self.sockets, self.load, self.limits, parser, self.answer)
        # So many are kept as gthread lets be kept.
        self.keepalived_conns = self.loop.kept
        Worker.init_process(self)

    def init_signals(self) -> None:
        """SIGUSR2 to a worker is the operator's request to replace it."""
        super().init_signals()
        signal.signal(signal.SIGUSR2, lambda *_: request_replacement(self.entry, Reason.OPERATOR))

    # gthread's wants a thread pool of its own.
    handle_quit = Worker.handle_quit

    def handle_exit(self, sig: int, frame: object) -> None:  # noqa: ARG002  gunicorn's signature
        """SIGTERM: stop accepting, answer what is there, end; a worker that still loads has nothing to finish."""
        self._note_drain()
        if not self.booted and self.grpc_server is None:
            sys.exit(0)
        # No sibling takes what waits to be accepted.
        self.loop.takes_rest = True
        self.stop()

    def drain(self) -> None:
        """Any thread: stop as at SIGTERM, but leave what waits to be accepted to the siblings."""
        self.log.info("DRAINING: in_flight=%s connections=%s", self.entry.in_flight, self.loop.connections)
        self._note_drain()
        self.stop()

    def stop(self) -> None:
        """Any thread: accept nothing more, answer what is there, end."""
        # From now on `handle_request` asks clients to close their connections.
        self.alive = False
        self.loop.stop()

    def _note_drain(self) -> None:
        """Record it in the worker table, once; print the stacks should it take too long. Safe in a signal's handler."""
        if not self._draining.acquire(blocking=False):
            return
        entry = self.entry
        entry.drained_s, entry.state = time.monotonic(), State.DRAINING
        if self.grpc_server is not None:
            self.grpc_server.drain()
        # It starts a thread, which may be refused.
        with suppress(RuntimeError):
            faulthandler.dump_traceback_later(max(_STACKS_SHARE * self.cfg.graceful_timeout, 0.1), file=_STDERR)

    def run(self) -> None:
        """Serve until stopped, and until the gRPC server has finished too."""
        self.loop.run(self.notify)
        end_s = (self.entry.drained_s or time.monotonic()) + self.cfg.graceful_timeout
        if self.grpc_server is not None:
            self.grpc_server.drain()
            while time.monotonic() < end_s and not self.grpc_server.wait(_WAIT_S):
                self.notify()

    def answer(self, conn: Connection) -> bool:
        """A request's thread: whether the next one may come; what the client does not take is left to the loop."""
        request, sender = conn.head.request, Sender(conn.sock)
        if conn.body is not None:
            conn.body.push = sender.push
        try:
            if conn.head.error is not None:
                raise conn.head.error
            keep = self.handle_request(request, SimpleNamespace(sock=sender, client=conn.client, server=conn.server))
            sender.flush()
            return bool(keep)
        except (StopIteration, NoMoreData, ConnectionError) as error:
            self.log.debug("The answer has not left: %r", error)
        except OSError:
            self.log.exception("The answer cannot be sent")
        except Exception as error:  # noqa: BLE001  gunicorn answers it
            self.handle_error(request, conn.sock, conn.client, error)
        finally:
            conn.unsent, conn.file = sender.unsent, sender.file
        return False

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """A request's thread: answer what never reached the application, such as a head that is wrong."""

        def send(answer: bytes) -> None:
            # The header that every answer has.
            client.sendall(answer.replace(b"\r\n", b"\r\nX-Content-Type-Options: nosniff\r\n", 1))

        super().handle_error(req, SimpleNamespace(sendall=send, gettimeout=client.gettimeout), addr, exc)


class PidFile(pidfile.Pidfile):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's pid file: whatever is in it stops nothing, and it is written whole or not at all."""

    fname: str

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(name)
        self.pid: int = pid

    def validate(self) -> int | None:
        """The living process that the file names; None for any other text. Raises OSError when it cannot be read."""
        try:
            pid: int | None = super().validate()
        except (OverflowError, ValueError):
            return None
        # A negative number would be a group of processes.
        return pid if pid and pid > 0 else None

    def create(self, pid: int) -> None:
        """Write it. Raises OSError, and RuntimeError where it is another living process's."""
        other = self.validate()
        if other == pid:
            return
        if other:
            raise RuntimeError(f"process {other} lives, and {self.fname} is its pid file")
        fresh = Path(f"{self.fname}.{pid}")
        try:
            fresh.write_text(f"{pid}\n", encoding="ascii")
            fresh.chmod(_PIDFILE_MODE)
            fresh.replace(self.fname)
        except OSError:
            with suppress(OSError):
                fresh.unlink()
            raise


def remove_stale(name: str) -> None:
    """Remove a file that names no living process; at the start, which gunicorn ends at a number that can be none."""
    with suppress(OSError):
        if PidFile(name, os.getpid()).validate() is None:
            Path(name).unlink()


def take_over(
    server: Any,
    controller: ReplacementController,
    hung_requests: HungRequests,
    each_second: Callable[[], object],
    drain_s: Callable[[], float] = float,
    on_stop: Callable[[], object] = bool,
) -> None:
    """Make gunicorn's arbiter this one; from `on_starting`, since the command `gunicorn` makes its own.

    Args:
        each_second: Must not wait for anything.
        drain_s: How long to serve on after SIGTERM, not ready, before the workers stop.
        on_stop: Called when the service stops, before its workers do.
    """
    server.__class__ = LastingArbiter
    server.controller, server.hung_requests = controller, hung_requests
    server._each_second, server._drain_s, server._on_stop = each_second, drain_s, on_stop  # noqa: SLF001
    server.begin()


class LastingArbiter(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's arbiter, which goes on when the operating system refuses something. Runs in its main thread.

    `spawn_worker` returns in the arbiter only: a worker's process leaves it by SystemExit, which nothing here may keep
    from it.
    """

    controller: ReplacementController
    hung_requests: HungRequests
    pid: int
    LISTENERS: list[Any]
    _each_second: Callable[[], object]
    _drain_s: Callable[[], float]
    _on_stop: Callable[[], object]

    def begin(self) -> None:
        """What a constructor would do; gunicorn's has already run, and has written the pid file."""
        self._stop_at_s = math.inf
        self._logged_s: dict[str, float] = {}
        self._last_turn_s = time.monotonic()
        self._pidfile_name, self._is_pidfile_due = self.cfg.pidfile, False
        self.pidfile: PidFile | None = PidFile(self._pidfile_name, self.pid) if self._pidfile_name else None

    # The exit code of a worker that ends the service: none, for what one could not do another may.
    WORKER_BOOT_ERROR = _NEVER

    @property
    def APP_LOAD_ERROR(self) -> int:  # noqa: N802  gunicorn's name
        """The same for an application that is none, once any worker was ready or the service ends."""
        return _NEVER if self.controller.is_settled else int(Arbiter.APP_LOAD_ERROR)

    def setup(self, app: Any) -> None:
        """The configuration, at a reload; the pid file is kept here, for gunicorn cannot fail to write it and go on."""
        super().setup(app)
        self._pidfile_name = self.cfg.pidfile
        self.cfg.set("pidfile", None)

    def wait_for_signals(self, timeout: float = 1.0) -> list[int]:
        """The signals that came, after a second at most."""
        with self._logging_errors("The signals are read again in a second"):
            return list(super().wait_for_signals(timeout))
        time.sleep(_PAUSE_S)
        return []

    def spawn_worker(self) -> int | None:
        """A new worker's process id; None when there is none, because it is too early to try, or was refused."""
        if self.controller.is_backing_off():
            return None
        # gunicorn changes it while it makes a temporary file, and leaves it so when that fails.
        umask = os.umask(0o077)
        os.umask(umask)
        try:
            pid: int = super().spawn_worker()
        except Exception as error:  # noqa: BLE001  whatever it is, others serve
            if os.getpid() != self.pid:
                # A worker that could not even say why it ends.
                os._exit(BOOT_FAILED)
            os.umask(umask)
            self.controller.fork_refused(self, error)
            return None
        return pid

    def manage_workers(self) -> None:
        """Fork those that are missing, end those that are too many."""
        with self._logging_errors("The workers are counted again in a second"):
            super().manage_workers()
        self._write_pidfile()

    def murder_workers(self) -> None:
        """Once a second: reap workers, decide which one is replaced, and end workers that do not answer.

        Raises StopIteration, as gunicorn's own handlers do, when the wait after SIGTERM is over.
        """
        if time.monotonic() >= self._stop_at_s:
            raise StopIteration
        self._reset_after_standstill()
        self.reap_workers()
        with self._logging_errors("The workers are looked at again in a second"):
            self.controller.run_once(self)
        with self._logging_errors("Workers that do not answer are ended later"):
            super().murder_workers()
        with self._logging_errors("What operators look at is noted again in a second"):
            self._each_second()

    def reap_workers(self) -> None:
        """Wait for those that have ended; one that is missed is found a second later."""
        with self._logging_errors("The workers that ended are waited for again in a second"):
            super().reap_workers()

    def kill_worker(self, pid: int, sig: int) -> None:
        """Send a signal; a worker that somebody else has waited for is counted out."""
        if pid in self.WORKERS:
            self.hung_requests.note_signal(pid, self.WORKERS[pid].slot_number, sig, self.timeout)
        with self._logging_errors(f"Worker {pid} cannot be sent signal {sig:d}"):
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                worker = self.WORKERS.pop(pid, None)
                if worker is not None:
                    self.cfg.child_exit(self, worker)

    def handle_usr1(self) -> None:
        """Open the log files again."""
        with self._logging_errors("The log files are not opened again"):
            super().handle_usr1()

    def handle_term(self) -> None:
        """SIGTERM: be not ready for a while, in which everything is answered, and then stop. The second: stop."""
        wait_s = self._drain_s()
        if not wait_s or self._stop_at_s < math.inf:
            raise StopIteration
        self._stop_at_s = time.monotonic() + wait_s
        self.controller.worker_table.head.leaving = 1
        self.log.info("LEAVING: not ready from now on, and stopping in %g s", wait_s)

    def reexec(self) -> None:
        """SIGUSR2: refused."""
        self.log.error(
            "SIGUSR2 to the arbiter is refused: a second one would hold all models twice. Send SIGHUP instead."
        )

    def reload(self) -> None:
        """SIGHUP: what cannot be read or done leaves the service as it was."""
        cfg, pidfile = self.cfg, self.pidfile
        # gunicorn would remove the pid file, and fail to write the next.
        self.pidfile = None
        try:
            with self._logging_errors("SIGHUP is not followed to its end"):
                super().reload()
        except HaltServer:
            # It is removed at the end.
            self.pidfile = pidfile
            raise
        if self.cfg is cfg:
            self.app.cfg = cfg
            os.environ.update(cfg.env)
        self._move_pidfile(pidfile)

    def stop(self, graceful: bool = True) -> None:  # noqa: FBT001, FBT002  gunicorn's signature
        """Stop all workers; as gunicorn does it, by a clock that never jumps."""
        self.controller.stop(self.cfg)
        self._close_listeners()
        self._on_stop()
        self.kill_workers(signal.SIGTERM if graceful else signal.SIGQUIT)
        end_s = time.monotonic() + self.cfg.graceful_timeout
        again_s = time.monotonic() + _SIGNAL_AGAIN_S
        while self.WORKERS and time.monotonic() < end_s:
            if graceful and self._is_quick_stop_requested():
                self.log.info("Quick shutdown requested")
                graceful = False
                self.kill_workers(signal.SIGQUIT)
                end_s = time.monotonic() + _QUICK_STOP_S
            if time.monotonic() >= again_s:
                again_s += _SIGNAL_AGAIN_S
                self._signal_again()
            self.reap_workers()
            time.sleep(_STOP_CHECK_S)
        self.kill_workers(signal.SIGKILL)
        self.reap_workers()

    def _signal_again(self) -> None:
        """A worker that was just forked still has the arbiter's handlers, and what is sent to it then is lost."""
        for pid, worker in list(self.WORKERS.items()):
            if self.controller.worker_table.entry(worker.slot_number).state != State.DRAINING:
                self.kill_worker(pid, signal.SIGTERM)

    def _is_quick_stop_requested(self) -> bool:
        try:
            return self.SIG_QUEUE.get_nowait() in (signal.SIGINT, signal.SIGQUIT)
        except queue.Empty:
            return False

    def _close_listeners(self) -> None:
        listeners, self.LISTENERS = self.LISTENERS, []
        for listener in listeners:
            with self._logging_errors("A listener is not removed"):
                sock.close_sockets([listener], not self.systemd)

    def _move_pidfile(self, before: PidFile | None) -> None:
        """Keep the pid file, or that of the new configuration."""
        name = self._pidfile_name
        if before is not None and before.fname != name:
            before.unlink()
        self.pidfile, self._is_pidfile_due = PidFile(name, self.pid) if name else None, True
        self._write_pidfile()

    def _write_pidfile(self) -> None:
        """Write the pid file, if that is still to be done. Without one the service serves all the same."""
        with self._logging_errors("The pid file cannot be written; the next try is in a second"):
            if self.pidfile is not None and self._is_pidfile_due:
                self.pidfile.create(self.pid)
                self._is_pidfile_due = False

    def _reset_after_standstill(self) -> None:
        """After the whole service was stopped for a while (a frozen container), nobody has answered in time."""
        now_s = time.monotonic()
        if now_s - self._last_turn_s > max(self.timeout / 2, _STANDSTILL_S):
            self.controller.reset_heartbeats()
        self._last_turn_s = now_s

    @contextmanager
    def _logging_errors(self, consequence: str) -> Iterator[None]:
        """Log what goes wrong in the block, and go on. What ends a worker's process, or the service, is let through."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if os.getpid() != self.pid:
                raise
            now_s = time.monotonic()
            if now_s >= self._logged_s.get(consequence, -_LOG_INTERVAL_S) + _LOG_INTERVAL_S:
                self._logged_s[consequence] = now_s
                expected = isinstance(error, (OSError, SystemExit))
                self.log.error(
                    "%s: %s: %s", consequence, type(error).__name__, error, exc_info=None if expected else error
                )
