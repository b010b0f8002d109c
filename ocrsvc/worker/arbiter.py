"""gunicorn's arbiter, which goes on when the operating system refuses something.

gunicorn ends the whole service, with the workers that serve, at any error that its main loop does not expect: a fork,
a temporary file or a pid file that is refused. Here each of them is a line in the log, and is tried again later. The
service ends only on a signal, or when no worker was ever ready (see replacement_controller.py).

Everything runs in the arbiter's main thread. `spawn_worker` returns in the arbiter only: a worker's process leaves it
by SystemExit, which nothing here may keep from it. tests/test_gunicorn.py knows the versions of what is replaced.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from gunicorn import sock
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

from ocrsvc.telemetry.worker_table import State
from ocrsvc.worker.pidfile import PidFile
from ocrsvc.worker.replacement_policy import BOOT_FAILED

if TYPE_CHECKING:
    from ocrsvc.worker.hung_requests import HungRequests
    from ocrsvc.worker.replacement_controller import ReplacementController

# What is refused each second is logged this often.
_LOG_INTERVAL_S: Final = 10.0
_PAUSE_S: Final = 1.0
# A turn of the main loop takes about a second.
_STANDSTILL_S: Final = 2.0
# After a second signal that asks to end at once.
_QUICK_STOP_S: Final = 2.0
_STOP_CHECK_S: Final = 0.1
_SIGNAL_AGAIN_S: Final = 1.0
# No exit code of a process is as large; as an exit code it is BOOT_FAILED.
_NEVER: Final = 256 + BOOT_FAILED


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
        server: gunicorn's.
        controller, hung_requests: See LastingArbiter.
        each_second: Called once a second; it must not wait for anything.
        drain_s: How long to serve on after SIGTERM, not ready, before the workers stop.
        on_stop: Called when the service stops, before its workers do.
    """
    server.__class__ = LastingArbiter
    server.begin(controller, hung_requests, each_second, drain_s, on_stop)


class LastingArbiter(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """See the module.

    Attributes:
        controller: Decides which worker is forked, replaced and killed, and when.
        hung_requests: Finds out for which request.
    """

    controller: ReplacementController
    hung_requests: HungRequests
    pid: int
    LISTENERS: list[Any]

    def begin(
        self,
        controller: ReplacementController,
        hung_requests: HungRequests,
        each_second: Callable[[], object],
        drain_s: Callable[[], float],
        on_stop: Callable[[], object],
    ) -> None:
        """What a constructor would do; gunicorn's has already run."""
        self.controller, self.hung_requests, self._each_second = controller, hung_requests, each_second
        self._drain_s, self._on_stop, self._stop_at_s = drain_s, on_stop, math.inf
        self._logged_s: dict[str, float] = {}
        self._last_turn_s = time.monotonic()
        # gunicorn has written it, at the start.
        self._pidfile_name, self._is_pidfile_due = self.cfg.pidfile, False
        self.pidfile: PidFile | None = PidFile(self._pidfile_name, self.pid) if self._pidfile_name else None

    # The exit code of a worker that ends the service: none, for what one could not do another may; see
    # replacement_controller.py.
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
