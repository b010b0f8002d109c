"""What this service replaces in gunicorn 27.0.1, or relies on though gunicorn does not promise it: all of it is here.

The reason for each piece stands beside it; tests/test_gunicorn.py has a digest of each method that is replaced or
relied on, and says what to do at an upgrade.

gunicorn ends the whole service, with the workers that serve, at any error that its arbiter's main loop does not expect.
Here each is a line in the log and is tried again; the service ends on a signal, or when no worker was ever ready.
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
from ocrsvc.worker.load_sharing import LoadSharing
from ocrsvc.worker.replacement_controller import BOOT_FAILED, ReplacementController
from ocrsvc.worker.replacement_limits import request_replacement

if TYPE_CHECKING:
    # It is imported where gRPC is served only.
    from ocrsvc.grpc_server.server import RpcServer
    from ocrsvc.worker.service_context import ServiceContext

# An error that comes again each second is logged this often.
_LOG_INTERVAL_S: Final = 10.0
_PAUSE_S: Final = 1.0
# A turn of the arbiter's main loop takes about a second.
_STANDSTILL_S: Final = 2.0
_SIGNAL_AGAIN_S: Final = 1.0
# No exit code of a process is as large; as an exit code it is BOOT_FAILED.
_NEVER: Final = 256 + BOOT_FAILED
# Before the arbiter, which gives a stopping service just the graceful timeout, ends it by force.
_STACKS_SHARE: Final = 0.9
_STDERR: Final = 2
# Between two heartbeats, while the gRPC server finishes.
_WAIT_S: Final = 1.0


class HeadParser:
    """gunicorn's parser for one connection: it gets whole heads from the event loop, and never reads a socket."""

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
    """When a worker was last alive, in its entry; gunicorn's file compares the wall clock with the monotonic one."""

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
    """

    # From before the fork.
    worker_table: WorkerTable
    slot_number: int
    # From after the fork, see boot.py.
    limits: RequestLimits
    # From the import of the application on.
    loop: EventLoop
    load: LoadSharing
    tmp: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        file, self.tmp = self.tmp, Heartbeat(self)
        file.close()
        # With its random part; 0 is no limit. gunicorn itself would stop at this number, without a successor.
        self.most_requests: int = 0 if self.max_requests == sys.maxsize else self.max_requests
        self.max_requests: int = sys.maxsize
        self.engine_threads: int = self.cfg.threads
        # Waits, for a short while, until the lines so far are written.
        self.flush_log: Callable[[], object] = bool
        # Drains when this worker does; the worker lives on until it is finished, or the time is over.
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
        # gthread's own bound of kept connections.
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
            self.log.debug("The answer has not left: %r", error)
        except OSError:
            self.log.exception("The answer cannot be sent")
        except Exception as error:  # noqa: BLE001  gunicorn answers it
            self.handle_error(request, conn.sock, conn.client, error)
        return False

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """A request's thread: answer what never reached the application, such as a wrong head."""

        def send(answer: bytes) -> None:
            # Every answer has this header.
            client.sendall(answer.replace(b"\r\n", b"\r\nX-Content-Type-Options: nosniff\r\n", 1))

        super().handle_error(req, SimpleNamespace(sendall=send, gettimeout=client.gettimeout), addr, exc)


class PidFile:
    """The service's pid file, written whole or not at all; gunicorn calls `unlink`, at a reload and at the end.

    gunicorn's own ends the service when it cannot be written or read, or names what can be no process.
    """

    def __init__(self, name: str) -> None:
        self.path, self._pid, self._is_written = Path(name), os.getpid(), False

    def write(self) -> None:
        """Write it, if that is still to be done. Raises OSError, also where it is another living process's."""
        if self._is_written:
            return
        other = _living_process(self.path)
        if other not in (None, self._pid):
            raise FileExistsError(f"process {other} lives, and {self.path} is its pid file")
        fresh = self.path.with_name(f"{self.path.name}.{self._pid}")
        try:
            fresh.write_text(f"{self._pid}\n", encoding="ascii")
            fresh.chmod(0o644)
            fresh.replace(self.path)
        except OSError:
            with suppress(OSError):
                fresh.unlink()
            raise
        self._is_written = True

    def unlink(self) -> None:
        """Remove it, if it is this service's."""
        self._is_written = False
        with suppress(OSError):
            if _living_process(self.path) == self._pid:
                self.path.unlink()


def _living_process(path: Path) -> int | None:
    """The living process that a pid file names; None for any other text."""
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
    # 0 and less are groups of processes.
    return pid if pid > 0 else None


def take_over(server: Any, service: ServiceContext, pidfile: str | None = None) -> None:
    """Make gunicorn's arbiter a LastingArbiter; from `on_starting`, since the command `gunicorn` makes its own."""
    server.__class__ = LastingArbiter
    server.begin(service, pidfile)


class LastingArbiter(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's arbiter, which goes on when the operating system refuses something. Runs in its main thread.

    A worker's process leaves `spawn_worker` by SystemExit, which nothing here may catch.
    """

    service: ServiceContext
    pid: int
    LISTENERS: list[Any]

    # The exit code of a worker that ends the service: none, for what one could not do another may.
    WORKER_BOOT_ERROR = _NEVER

    def begin(self, service: ServiceContext, pidfile: str | None) -> None:
        """What a constructor would do; gunicorn's has already run."""
        self.service = service
        self._stop_at_s = self._signal_again_s = math.inf
        self._logged_s: dict[str, float] = {}
        self._last_turn_s = time.monotonic()
        self.pidfile = PidFile(pidfile) if pidfile else None

    @property
    def controller(self) -> ReplacementController:
        """The service's."""
        return self.service.controller

    @property
    def APP_LOAD_ERROR(self) -> int:  # noqa: N802  gunicorn's name
        """The same for an application that is none, once any worker was ready or the service ends."""
        return _NEVER if self.controller.is_settled else int(Arbiter.APP_LOAD_ERROR)

    def setup(self, app: Any) -> None:
        """The configuration, at a reload; the pid file is kept here, for gunicorn cannot fail to write it and go on."""
        super().setup(app)
        name, before = self.cfg.pidfile, self.pidfile
        self.cfg.set("pidfile", None)
        if before is None or str(before.path) != name:
            self.pidfile = PidFile(name) if name else None
            if before is not None:
                before.unlink()

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
        """Fork those that are missing, end those that are too many; write a pid file that is still to be written."""
        with self._logging_errors("The workers are counted again in a second"):
            super().manage_workers()
        with self._logging_errors("The pid file cannot be written; the next try is in a second"):
            if self.pidfile is not None:
                self.pidfile.write()

    def murder_workers(self) -> None:
        """Once a second: reap workers, replace one, end those without a heartbeat. Raises StopIteration to stop."""
        if time.monotonic() >= self._stop_at_s:
            raise StopIteration
        self._reset_after_standstill()
        self.reap_workers()
        with self._logging_errors("The workers are looked at again in a second"):
            self.controller.run_once(self)
        with self._logging_errors("Workers that do not answer are ended later"):
            super().murder_workers()
        with self._logging_errors("What operators look at is noted again in a second"):
            self.service.each_second()

    def reap_workers(self) -> None:
        """Wait for those that have ended; one that is missed is found a second later. Called by `stop` too."""
        with self._logging_errors("The workers that ended are waited for again in a second"):
            super().reap_workers()
        if time.monotonic() >= self._signal_again_s:
            self._signal_again_s = time.monotonic() + _SIGNAL_AGAIN_S
            # A worker that was just forked still has the arbiter's handlers, and what is sent to it then is lost.
            for pid, worker in list(self.WORKERS.items()):
                if self.controller.worker_table.entry(worker.slot_number).state != State.DRAINING:
                    self.kill_worker(pid, signal.SIGTERM)

    def kill_worker(self, pid: int, sig: int) -> None:
        """Send a signal; a worker whose end was missed is counted out."""
        if pid in self.WORKERS:
            self.service.hung_requests.note_signal(pid, self.WORKERS[pid].slot_number, sig, self.timeout)
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
        wait_s = self.service.settings.drain_s
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
        cfg = self.cfg
        with self._logging_errors("SIGHUP is not followed to its end"):
            super().reload()
        if self.cfg is cfg:
            self.app.cfg = cfg
            os.environ.update(cfg.env)

    def stop(self, graceful: bool = True) -> None:  # noqa: FBT001, FBT002  gunicorn's signature
        """Stop all workers. gunicorn calls `reap_workers` while it waits for them."""
        self.controller.stop(self.cfg)
        listeners, self.LISTENERS = self.LISTENERS, []
        for listener in listeners:
            with self._logging_errors("A listener is not removed"):
                sock.close_sockets([listener], not self.systemd)
        self.service.close_grpc_listeners()
        if graceful:
            self._signal_again_s = time.monotonic() + _SIGNAL_AGAIN_S
        super().stop(graceful)

    def _reset_after_standstill(self) -> None:
        """After the whole service was stopped for a while (a frozen container), no worker has answered in time."""
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
