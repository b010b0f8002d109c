"""Runs work on engine threads: N threads, each with an engine handle of its own, fed by one bounded queue.

Knows nothing about OCR. One bad item never spoils its neighbours: a handle answers each item with a result or an error,
and when it fails on a whole batch the items are run once more, one by one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Generic, Protocol, TypeVar

from ocrsvc.errors import DeadlineExceeded, EngineFailed, OcrsvcError
from ocrsvc.serving.batcher import run_each_on_failure
from ocrsvc.serving.request_guard import waiting
from ocrsvc.serving.work_queue import (
    DEFAULT_CONTEXT,
    GONE_S,
    Item,
    NeverStarted,
    RequestContext,
    Served,
    WorkQueue,
    client_gone,
    deadline_passed,
)

IDLE_S = 1.0
STUCK_S = 5.0
"""How long after the deadline of its work a thread counts as stuck: engines check it between lines, not within."""

_SIGNAL_S = 0.1

W = TypeVar("W")
A = TypeVar("A")
W_contra = TypeVar("W_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class ThreadHandle(Protocol[W_contra, A_co]):
    """The handle that a thread owns; see engines.contract.Handle for its contract."""

    def warm_up(self) -> None:
        """Run once in the owning thread before any work."""

    def read(self, tasks: Sequence[W_contra]) -> Sequence[A_co | OcrsvcError]:
        """One answer or error for each task, in the same order."""
        ...

    def close(self) -> None:
        """Run once in the owning thread after the last work."""


class QueuePlace(Generic[W, A]):
    """A place in the queue, held by one request."""

    def __init__(self, queue: WorkQueue[W, A], context: RequestContext, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._context = context
        self._clock = clock
        self.is_submitted = False

    def submit(self, work: W, deadline: float, size_bytes: int = 0) -> Item[W, A]:
        """Fill the place; wait for the answer with `wait`. Raises NotReady when the executor is stopping."""
        item = self._queue.put(work, deadline, size_bytes, self._context)
        self.is_submitted = True
        return item

    def give_up(self, item: Item[W, A]) -> None:
        """Drop an item that nobody waits for, unless a thread has it already."""
        self._queue.discard(item)

    def wait(self, item: Item[W, A]) -> Served[A]:
        """Block until the item is answered; raises the item's own error.

        Raises DeadlineExceeded at its deadline, not after it (NeverStarted where it was still in the queue), and
        ClientGone when the client hangs up while the item is in the queue.
        """
        try:
            with waiting():
                return self._wait(item)
        except CancelledError:
            raise deadline_passed(NeverStarted) from None
        finally:
            if item.future.cancelled() or not item.future.done():
                self.give_up(item)

    def _wait(self, item: Item[W, A]) -> Served[A]:
        while True:
            left_s = max(0.0, item.deadline - self._clock())
            queued = not item.future.running()
            with contextlib.suppress(TimeoutError):
                return item.future.result(min(left_s, GONE_S) if queued else left_s)
            if left_s <= GONE_S or not queued:
                raise deadline_passed(NeverStarted if item.future.cancel() else DeadlineExceeded)
            if self._context.is_gone():
                raise client_gone()


class Executor(Generic[W, A]):
    """N threads in front of an engine, each of which opens one handle, and hands `batch` items at most to one `read`.

    `places` and `may_join` are the queue's. With `serial_open` the handles are opened one after the other. `on_idle` is
    called in an engine thread that has had nothing to do for IDLE_S; once until there is work again.
    """

    def __init__(
        self,
        open_handle: Callable[[], ThreadHandle[W, A]],
        *,
        threads: int,
        places: int,
        batch: int = 1,
        serial_open: bool = False,
        on_idle: Callable[[], object] = bool,
        may_join: Callable[[W, int, W], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_handle = open_handle
        self._batch = batch
        self._on_idle = on_idle
        self._clock = clock
        self.queue: WorkQueue[W, A] = WorkQueue(places, threads, clock, may_join)
        self._opening: contextlib.AbstractContextManager[object] = (
            threading.Lock() if serial_open else contextlib.nullcontext()
        )
        self._threads = [
            threading.Thread(target=self._run_thread, name=f"engine-{n}", daemon=True) for n in range(threads)
        ]
        self._opened = threading.Semaphore(0)
        self._failures: list[BaseException] = []
        self._due: dict[int, float] = {}
        self._calls: dict[int, deque[tuple[Callable[[], object], Future[None]]]] = {}

    def start(self) -> None:
        """Start the threads and block until each has opened and warmed its handle; raises the first failure."""
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            # A signal does not end a wait without a limit: gunicorn has system calls go on after one.
            while not self._opened.acquire(timeout=_SIGNAL_S):
                pass
        if self._failures:
            self.stop(timeout_s=5.0)
            raise self._failures[0]

    @contextlib.contextmanager
    def admit(self, context: RequestContext = DEFAULT_CONTEXT) -> Iterator[QueuePlace[W, A]]:
        """Hold a place in the queue while its work is made. Raises QueueFull or NotReady."""
        self.queue.reserve(context.priority)
        place = QueuePlace(self.queue, context, self._clock)
        try:
            yield place
        finally:
            if not place.is_submitted:
                self.queue.release(context.priority)

    def idents(self) -> tuple[int, ...]:
        """The engine threads, as threading.get_ident() names them; once they are started."""
        return tuple(thread.ident for thread in self._threads if thread.ident is not None)

    def run_in_each(self, call: Callable[[], object], threads: Sequence[int] | None = None) -> list[Future[None]]:
        """Have engine threads, or all, run something before their next work; those that are idle wake up for it.

        Returns one future for each. Wait for it with a limit: a thread that is stuck, or has ended, never comes to it.
        """
        futures = []
        for thread in self.idents() if threads is None else threads:
            future: Future[None] = Future()
            futures.append(future)
            self._calls.setdefault(thread, deque()).append((call, future))
            self.queue.interrupt(thread)
        return futures

    def stuck_threads(self) -> int:
        """Threads that still run work whose deadline passed STUCK_S ago; a native call cannot be ended from here."""
        latest = self._clock() - STUCK_S
        return sum(due < latest for due in list(self._due.values()))

    def stop(self, timeout_s: float) -> bool:
        """Take no new work, finish what is queued, and after `timeout_s` answer the rest with NotReady.

        Returns whether every thread has ended; a thread inside a native call cannot be stopped from here.
        """
        self.queue.close()
        deadline = self._clock() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))
        self.queue.abandon()
        return not any(thread.is_alive() for thread in self._threads)

    def _run_thread(self) -> None:
        """One engine thread, from opening its handle to closing it."""
        with contextlib.ExitStack() as stack:
            try:
                with self._opening:
                    handle = self._open_handle()
                stack.callback(handle.close)
                handle.warm_up()
            except BaseException as failure:  # noqa: BLE001  start() raises it in the thread that waits
                self._failures.append(failure)
                return
            finally:
                self._opened.release()
            while (items := self._take()) or items is None:
                if items:
                    self._serve(handle, items)

    def _take(self) -> list[Item[W, A]] | None:
        """The next work; empty at the end; None after calls that had to be run meanwhile."""
        items = self.queue.take(self._batch, IDLE_S)
        if items is None and not self._run_calls():
            self._on_idle()
            items = self.queue.take(self._batch)
            if items is None:
                self._run_calls()
        return items

    def _run_calls(self) -> bool:
        """Run what `run_in_each` left for this thread; whether there was anything."""
        calls = self._calls.get(threading.get_ident())
        if not calls:
            return False
        while calls:
            call, future = calls.popleft()
            if future.set_running_or_notify_cancel():
                _run_call(call, future)
        return True

    def _serve(self, handle: ThreadHandle[W, A], items: list[Item[W, A]]) -> None:
        began = self._clock()
        self._due[threading.get_ident()] = max(item.deadline for item in items)
        answers = run_each_on_failure(handle.read, [item.work for item in items])
        del self._due[threading.get_ident()]
        run_s = self._clock() - began
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, BaseException):
                item.future.set_exception(_as_engine_failure(answer))
            else:
                item.future.set_result(Served(answer, began - item.queued_at, run_s))
        self.queue.record_run(len(items), run_s)


def _run_call(call: Callable[[], object], future: Future[None]) -> None:
    try:
        call()
    except BaseException as failure:  # noqa: BLE001  whoever waits for it raises it
        future.set_exception(failure)
    else:
        future.set_result(None)


def _as_engine_failure(failure: BaseException) -> OcrsvcError:
    if isinstance(failure, OcrsvcError):
        return failure
    error = EngineFailed(
        f"The engine failed on this image with {type(failure).__name__}: {failure}.",
        "If other images are read, this one triggers a fault in the engine: please report it with the image.",
    )
    error.__cause__ = failure
    return error
