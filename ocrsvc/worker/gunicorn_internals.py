"""Everything in gunicorn 27.0.1 that this service overrides, or uses although it is undocumented.

tests/test_gunicorn.py has a digest of each such method, and explains what to do at an upgrade.

gunicorn ends the whole service on any unexpected error in its arbiter's main loop. Here such errors are logged and the
step is retried; the service ends on a signal, or when no worker was ever ready.
"""

from __future__ import annotations

import faulthandler
import math
import os
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

from gunicorn import sock
from gunicorn.arbiter import Arbiter
from gunicorn.http.body import ChunkedReader, LengthReader
from gunicorn.http.errors import InvalidHeader, NoMoreData
from gunicorn.http.parser import RequestParser
from gunicorn.workers.base import Worker
from gunicorn.workers.gthread import ThreadWorker

from ocrsvc.system.gpu import Siblings
from ocrsvc.telemetry.worker_table import Reason, State, WorkerEntry, WorkerTable
from ocrsvc.worker.connection import Connection, Head, RequestLimits, Sender
from ocrsvc.worker.event_loop import EventLoop
from ocrsvc.worker.replacement_controller import BOOT_FAILED, ReplacementController
from ocrsvc.worker.request_threads import LoadSharing
from ocrsvc.worker.watch import STDERR, request_replacement

if TYPE_CHECKING:
    # Only for type checkers: the gRPC server is imported later, and only if gRPC is served.
    from ocrsvc.grpc_server.server import RpcServer
    from ocrsvc.worker.service_context import ServiceContext

_LOG_INTERVAL_S: Final = 10.0
_PAUSE_S: Final = 1.0
# If the arbiter's main loop pauses for more than this instead of a second, the other processes were frozen too.
_STANDSTILL_S: Final = 2.0
_SIGNAL_AGAIN_S: Final = 1.0
# Never equal to an exit status; as an argument of exit it means BOOT_FAILED, because the kernel keeps 8 bits.
_NEVER: Final = 256 + BOOT_FAILED
# Share of the graceful timeout after which stacks are dumped; at its end the arbiter kills the worker.
_STACKS_SHARE: Final = 0.9


def head_parser(cfg: Any, client: Any) -> Callable[[bytes], Head]:
    """gunicorn's head parser for one connection: a function from a complete head and the bytes after it to a Head."""
    # The parser gets no socket, because the event loop receives the head and passes it to `parse`.
    parser = RequestParser(cfg, iter(()), client)

    def parse(head: bytes) -> Head:
        parser.unreader.unread(head)
        parsed = Head()
        try:
            request = next(parser)
            # HTTP/1.1 requires a Host header (RFC 9112 section 3.2).
            if request.version >= (1, 1) and all(name != "HOST" for name, _ in request.headers):
                raise InvalidHeader("HOST is missing", req=request)
        except Exception as error:  # noqa: BLE001  the request's thread lets gunicorn answer it
            parsed.error = error
        else:
            parsed.request, reader = request, request.body.reader
            if isinstance(reader, ChunkedReader):
                parsed.body_bytes = None
            elif isinstance(reader, LengthReader):
                parsed.body_bytes = int(reader.length)
            parsed.expects_continue, request._expected_100_continue = request._expected_100_continue, False  # noqa: SLF001
        parsed.rest = parser.unreader.take_buffered()
        return parsed

    return parse


class RecyclingWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """The worker class: gunicorn's signals, hooks and WSGI around our event loop, request threads and watch.

    It uses only gthread's `handle_request`, which runs the application. gthread's own loop blocks up to 2 s for each
    lingering close, gives threads to silent connections, and never moves idle connections to a less busy worker.
    ReplacementController sets `worker_table` and `slot_number` before the fork, and boot.py sets `limits` after it.
    """

    worker_table: WorkerTable
    slot_number: int
    limits: RequestLimits
    loop: EventLoop
    load: LoadSharing
    tmp: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tmp.close()
        # Heartbeats are in the worker table, because gunicorn's heartbeat file mixes wall clock and monotonic clock.
        # gunicorn sets close-on-exec on `fileno`, so return the descriptor of a listener, which has that flag already.
        self.tmp = SimpleNamespace(
            last_update=lambda: self.entry.alive_s, fileno=self.sockets[0].fileno, close=lambda: None
        )
        # max_requests with jitter; 0 is no limit. gunicorn gets no limit: it would stop the worker without a successor.
        self.replace_after_requests: int = 0 if self.max_requests == sys.maxsize else self.max_requests
        self.max_requests: int = sys.maxsize
        self.engine_threads: int = self.cfg.threads
        # Waits briefly until all log lines are written.
        self.flush_log: Callable[[], object] = lambda: None
        # The worker's gRPC server, which finishes its requests within the graceful timeout when the worker drains.
        self.grpc_server: RpcServer | None = None
        self._draining = threading.Lock()

    @property
    def entry(self) -> WorkerEntry:
        """This worker's entry in the worker table."""
        return self.worker_table.entry(self.slot_number)

    def siblings(self) -> Siblings:
        """The GPU memory of the other workers, from the worker table."""
        return Siblings(*self.worker_table.gpu_use_of_others(self.slot_number))

    def init_process(self) -> None:
        """After the fork: make the event loop, then start as gunicorn's workers do, which calls `run` at the end."""
        self.load = LoadSharing(self.worker_table, self.slot_number, self.engine_threads)
        parser = partial(head_parser, self.cfg)
        self.loop = EventLoop(self.cfg, self.log, self.sockets, self.load, self.limits, parser, self.answer)
        # gthread's `handle_request` compares the number of these connections with its limit.
        self.keepalived_conns = self.loop.kept
        Worker.init_process(self)

    def init_signals(self) -> None:
        """Let an operator replace this worker by SIGUSR2."""
        super().init_signals()
        signal.signal(signal.SIGUSR2, lambda *_: request_replacement(self.entry, Reason.OPERATOR))

    # Use the base class's method, because gthread's method needs gthread's thread pool.
    handle_quit = Worker.handle_quit

    def handle_exit(self, sig: int, frame: object) -> None:  # noqa: ARG002  gunicorn's signature
        """SIGTERM: stop accepting, finish open requests, exit; a worker that is loading exits immediately."""
        self._note_drain()
        if not self.booted and self.grpc_server is None:
            self.flush_log()
            # Not by SystemExit: Python ignores it in a finalizer, such as those that each import runs.
            os._exit(0)
        # The other workers may be stopping too, so this one accepts the connections in the listen queue.
        self.loop.takes_rest = True
        self.stop()

    def drain(self) -> None:
        """Any thread: stop as on SIGTERM, but leave the listen queue to the other workers."""
        self.log.info("DRAINING: in_flight=%s connections=%s", self.entry.in_flight, self.loop.connections)
        self._note_drain()
        self.stop()

    def stop(self) -> None:
        """Stop accepting, finish open requests, exit. Any thread may call it."""
        # Makes `handle_request` send "Connection: close".
        self.alive = False
        self.loop.stop()

    def _note_drain(self) -> None:
        """Record the drain once, and dump stacks if it takes too long. Safe in a signal handler."""
        if not self._draining.acquire(blocking=False):
            return
        entry = self.entry
        entry.drained_s, entry.state = time.monotonic(), State.DRAINING
        if self.grpc_server is not None:
            self.grpc_server.drain()
        # The system may refuse a new thread.
        with suppress(RuntimeError):
            faulthandler.dump_traceback_later(max(_STACKS_SHARE * self.cfg.graceful_timeout, 0.1), file=STDERR)

    def notify(self) -> None:
        """Record a heartbeat."""
        self.entry.alive_s = time.monotonic()

    def run(self) -> None:
        """Serve HTTP until stopped, then wait until the gRPC server has finished."""
        self.loop.run(self.notify)
        if self.grpc_server is not None:
            end_s = (self.entry.drained_s or time.monotonic()) + self.cfg.graceful_timeout
            self.grpc_server.drain()
            while time.monotonic() < end_s and not self.grpc_server.wait(_PAUSE_S):
                self.notify()

    def answer(self, conn: Connection) -> bool:
        """Request thread: serve a request; return whether to keep the connection. The event loop sends unsent bytes."""
        request = conn.head.request
        sender = conn.sender = Sender(conn.sock)
        if conn.body is not None:
            conn.body.push = sender.push
        try:
            if conn.head.error is not None:
                raise conn.head.error
            keep = self.handle_request(request, SimpleNamespace(sock=sender, client=conn.client, server=conn.server))
            sender.flush()
            return bool(keep)
        except (StopIteration, NoMoreData, ConnectionError) as error:
            self.log.debug("The response was not sent: %r", error)
        except OSError:
            self.log.exception("The response cannot be sent")
        except Exception as error:  # noqa: BLE001  gunicorn answers it
            self.handle_error(request, conn.sock, conn.client, error)
        return False

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Request thread: answer a request that fails outside the application, such as one with a malformed head."""

        def send(answer: bytes) -> None:
            # Added because every response of the service has this header.
            client.sendall(answer.replace(b"\r\n", b"\r\nX-Content-Type-Options: nosniff\r\n", 1))

        super().handle_error(req, SimpleNamespace(sendall=send, gettimeout=client.gettimeout), addr, exc)


class PidFile:
    """The pid file, written atomically; gunicorn's class would end the service on a write error or an invalid file."""

    def __init__(self, name: str) -> None:
        self.path, self._pid = Path(name), os.getpid()

    def write(self) -> None:
        """Write this process's id to the pid file. Raises OSError, also if the file names another running process."""
        other = _living_process(self.path)
        if other == self._pid:
            return
        if other is not None:
            raise FileExistsError(f"{self.path} is the pid file of the running process {other}")
        fresh = self.path.with_name(f"{self.path.name}.{self._pid}")
        try:
            fresh.write_text(f"{self._pid}\n", encoding="ascii")
            fresh.chmod(0o644)
            fresh.replace(self.path)
        finally:
            fresh.unlink(missing_ok=True)

    def unlink(self) -> None:
        """Remove the pid file if it names this process; gunicorn calls this on a reload and at the end."""
        with suppress(OSError):
            if _living_process(self.path) == self._pid:
                self.path.unlink()


def _living_process(path: Path) -> int | None:
    """The process id in a pid file if that process is running, else None."""
    try:
        pid = int(path.read_text("latin-1"))
    except (OSError, ValueError):
        return None
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return None
    # For `os.kill`, 0 and negative ids mean process groups.
    return pid if pid > 0 else None


def take_over(server: Any, service: ServiceContext, pidfile: str | None = None) -> None:
    """Turn the arbiter that the `gunicorn` command has created into a LastingArbiter; called by `on_starting`."""
    server.__class__ = LastingArbiter
    server.begin(service, pidfile)


class LastingArbiter(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's arbiter, made to survive errors of the operating system. Runs in the arbiter's main thread.

    A forked worker leaves `spawn_worker` by SystemExit, which must not be caught here.
    """

    service: ServiceContext
    controller: ReplacementController
    pid: int
    LISTENERS: list[Any]

    # No exit code of a worker ends the service, because the next worker may succeed.
    WORKER_BOOT_ERROR = _NEVER

    def begin(self, service: ServiceContext, pidfile: str | None) -> None:
        """Initialise the added attributes; gunicorn's constructor has already run."""
        self.service, self.controller = service, service.controller
        self._stop_at_s = self._signal_again_s = math.inf
        self._logged_s: dict[str, float] = {}
        self._last_turn_s = time.monotonic()
        self.pidfile = PidFile(pidfile) if pidfile else None

    @property
    def APP_LOAD_ERROR(self) -> int:  # noqa: N802  gunicorn's name
        """Exit code of a worker that cannot load the application; it ends the service if no worker was ever ready."""
        is_past_start = self.controller.has_ended or self.controller.worker_table.head.ever_ready
        return _NEVER if is_past_start else int(Arbiter.APP_LOAD_ERROR)

    def setup(self, app: Any) -> None:
        """Apply a reloaded configuration without its pid file, because gunicorn ends if it cannot write that file."""
        super().setup(app)
        name, before = self.cfg.pidfile, self.pidfile
        self.cfg.set("pidfile", None)
        if before is None or str(before.path) != name:
            self.pidfile = PidFile(name) if name else None
            if before is not None:
                before.unlink()

    def wait_for_signals(self, timeout: float = 1.0) -> list[int]:
        """Wait up to `timeout` seconds, and return the signals that arrived."""
        with self._logging_errors("Signals cannot be read; retrying in a second"):
            return list(super().wait_for_signals(timeout))
        time.sleep(_PAUSE_S)
        return []

    def spawn_worker(self) -> int | None:
        """Fork a worker and return its process id; None during a back-off, or if the fork was refused."""
        if self.controller.is_backing_off():
            return None
        # gunicorn changes the umask to make a temporary file, and does not restore it if that fails.
        os.umask(umask := os.umask(0o077))
        try:
            return int(super().spawn_worker())
        except Exception as error:  # noqa: BLE001  the other workers keep serving
            if os.getpid() != self.pid:
                # This process is the forked worker, which could not log its error; it must not go on as an arbiter.
                os._exit(BOOT_FAILED)
            os.umask(umask)
            self.controller.fork_refused(self, error)
            return None

    def manage_workers(self) -> None:
        """Fork missing workers, end surplus ones, and write the pid file if that failed before."""
        with self._logging_errors("Workers cannot be started or stopped; retrying in a second"):
            super().manage_workers()
        with self._logging_errors("The pid file cannot be written; retrying in a second"):
            if self.pidfile is not None:
                self.pidfile.write()

    def murder_workers(self) -> None:
        """Once a second: reap ended workers, allow a replacement, kill hanging workers. Raises StopIteration to end."""
        now_s = time.monotonic()
        if now_s >= self._stop_at_s:
            raise StopIteration
        # After a pause in which no process ran, such as a frozen container, no heartbeat counts as missing.
        if now_s - self._last_turn_s > max(self.timeout / 2, _STANDSTILL_S):
            self.controller.reset_heartbeats()
        self._last_turn_s = now_s
        self.reap_workers()
        with self._logging_errors("Replacements cannot be checked; retrying in a second"):
            self.controller.run_once(self)
        with self._logging_errors("Workers without a heartbeat cannot be killed; retrying in a second"):
            super().murder_workers()
        with self._logging_errors("Certificates or history cannot be updated; retrying in a second"):
            self.service.each_second()

    def reap_workers(self) -> None:
        """Reap ended workers; also called by `stop`."""
        with self._logging_errors("Ended workers cannot be reaped; retrying in a second"):
            super().reap_workers()
        if time.monotonic() >= self._signal_again_s:
            self._signal_again_s = time.monotonic() + _SIGNAL_AGAIN_S
            # Repeat SIGTERM: a worker that was just forked still has the arbiter's handlers and ignores the signal.
            for pid, worker in list(self.WORKERS.items()):
                if self.controller.worker_table.entry(worker.slot_number).state != State.DRAINING:
                    self.kill_worker(pid, signal.SIGTERM)

    def kill_worker(self, pid: int, sig: int) -> None:
        """Send a signal to a worker; remove the worker if it has already ended."""
        if pid in self.WORKERS:
            self.service.hung_requests.note_signal(pid, self.WORKERS[pid].slot_number, sig, self.timeout)
        with self._logging_errors(f"Worker {pid} cannot be sent signal {sig:d}"):
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                if worker := self.WORKERS.pop(pid, None):
                    self.cfg.child_exit(self, worker)

    def handle_usr1(self) -> None:
        """SIGUSR1: reopen the log files."""
        with self._logging_errors("The log files cannot be reopened"):
            super().handle_usr1()

    def handle_term(self) -> None:
        """SIGTERM: report not ready for OCRSVC_DRAIN_S while serving, then stop. A second SIGTERM ends the wait."""
        wait_s = self.service.settings.drain_s
        if not wait_s or self._stop_at_s < math.inf:
            raise StopIteration
        self._stop_at_s = time.monotonic() + wait_s
        self.controller.worker_table.head.leaving = 1
        self.log.info("LEAVING: not ready from now on, and stopping in %g s", wait_s)

    def reexec(self) -> None:
        """SIGUSR2: refuse to start a second arbiter."""
        self.log.error("SIGUSR2 to the arbiter is refused: a second one would load all models. Send SIGHUP instead.")

    def reload(self) -> None:
        """SIGHUP: reload the configuration; on an error the service keeps the old one."""
        cfg = self.cfg
        with self._logging_errors("The reload has failed"):
            super().reload()
        if self.cfg is cfg:
            self.app.cfg = cfg
            os.environ.update(cfg.env)

    def stop(self, graceful: bool = True) -> None:  # noqa: FBT001, FBT002  gunicorn's signature
        """Stop all workers. gunicorn calls `reap_workers` while it waits for them."""
        self.controller.has_ended = True
        self.controller.restore_config(self.cfg)
        listeners, self.LISTENERS = self.LISTENERS, []
        for listener in listeners:
            with self._logging_errors("A listener cannot be closed"):
                sock.close_sockets([listener], not self.systemd)
        # Close the arbiter's copies of the gRPC listeners; the workers have copies of their own.
        for listener in self.service.grpc_listeners:
            listener.close()
        self._signal_again_s = time.monotonic() + _SIGNAL_AGAIN_S
        super().stop(graceful)

    @contextmanager
    def _logging_errors(self, consequence: str) -> Iterator[None]:
        """Log an error in the block and continue. Errors in a forked worker, or that end the service, are raised."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if os.getpid() != self.pid:
                raise
            now_s = time.monotonic()
            if now_s >= self._logged_s.get(consequence, -_LOG_INTERVAL_S) + _LOG_INTERVAL_S:
                self._logged_s[consequence] = now_s
                trace = None if isinstance(error, (OSError, SystemExit)) else error
                self.log.error("%s: %s: %s", consequence, type(error).__name__, error, exc_info=trace)
