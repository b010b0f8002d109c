"""A bounded queue of work, interactive before batch, whose places are reserved before the work is made.

A place is reserved first (`reserve`), so that a request that cannot be served is refused before its image is decoded,
and given back when the work leaves the queue, whatever way. Work is bounded by count; what it holds in memory is in the
account of its request. Within a priority the earliest deadline is first. Knows nothing about OCR.
"""

from __future__ import annotations

import math
import threading
from bisect import insort
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

from ocrsvc.errors import ClientGone, DeadlineExceeded, NotReady, QueueFull
from ocrsvc.records import MaskKind, ModelChoice
from ocrsvc.serving.memory_budget import Share, unlimited
from ocrsvc.serving.page_account import UNCOUNTED, PageAccount
from ocrsvc.telemetry.ledger import NO_LEDGER, Ledger
from ocrsvc.telemetry.metrics import PageSource

W = TypeVar("W")
A = TypeVar("A")

Priority = Literal["interactive", "batch"]
"""A person waits for the answer, or a program that has many to send and can wait."""

PRIORITIES: Final[tuple[Priority, ...]] = ("interactive", "batch")

PACE_WEIGHT = 0.1  # of the newest item in the running mean of service times
BATCH_EVERY: Final = 5
"""While both priorities wait, every so many-th item is a batch one: it is slowed down, and never starves."""
BATCH_SHARE: Final = 0.75
"""Of the places, for batch at most: an interactive request finds one of the rest."""
GONE_S: Final = 0.25
"""Between two checks of who waits, or of work that runs, whether the client is still there."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the queue and the reader know of a request.

    Attributes:
        is_gone: Whether the client has hung up, or the job was deleted. Called when a server takes its work and seldom
            besides, from any thread, also under the queue's lock: it must not block or raise (there, what raises counts
            as gone).
        mask: What is to be masked in its answers, whatever its options say.
        ledger: Of its stages; for the request's own thread.
        choice: The model that it asks for beside its options; None where it does not, and without a model repository.
    """

    priority: Priority = "interactive"
    is_gone: Callable[[], bool] = bool
    share: Share = field(default_factory=unlimited)
    pages: PageAccount = UNCOUNTED
    mask: tuple[MaskKind, ...] = ()
    ledger: Ledger = NO_LEDGER
    choice: ModelChoice | None = None
    source: PageSource = "request"


DEFAULT_CONTEXT: Final = RequestContext()


@dataclass(frozen=True, slots=True)
class Served(Generic[A]):
    """An answer, the seconds its work waited in the queue, and the seconds it ran."""

    answer: A
    queue_s: float
    run_s: float


@dataclass(slots=True, eq=False)
class Item(Generic[W, A]):
    """One piece of work in the queue."""

    work: W
    deadline: float
    size_bytes: int
    queued_at: float
    context: RequestContext
    future: Future[Served[A]] = field(default_factory=Future)


class WorkQueue(Generic[W, A]):
    """A bounded queue, ordered by priority and deadline. All methods may be called from any thread.

    The places are for items that wait, or are in the making; three quarters of them are open to batch. The servers are
    the threads that take from it, only used to foretell when a place comes free. `may_join` says whether a piece of
    work may be handed out with others: the first of them, how many they are, and it; None where all may.
    """

    def __init__(
        self,
        places: int,
        servers: int,
        clock: Callable[[], float],
        may_join: Callable[[W, int, W], bool] | None = None,
    ) -> None:
        self._places = {"interactive": places, "batch": max(1, int(places * BATCH_SHARE))}
        self._servers = servers
        self._clock = clock
        self._may_join = may_join
        # Threads that are to return from `take` without work.
        self._interrupted: set[int] = set()
        self._taken = dict.fromkeys(PRIORITIES, 0)
        self._running = 0
        # Earliest deadline first, then first come first served.
        self._items: dict[Priority, list[Item[W, A]]] = {priority: [] for priority in PRIORITIES}
        self._batch_skipped = 0
        self._changed = threading.Condition()
        self._closed = False
        self._mean_run_s = 0.0

    def check_capacity(self, priority: Priority = "interactive") -> None:
        """Raises QueueFull when no place is free for this priority now, NotReady when the queue is closed.

        Takes no lock: every request asks, and threads that wait for each other here cost more than all else.
        """
        if self._closed:
            raise _shutting_down()
        if self.waiting() >= self._places["interactive"]:
            raise self._full(f"All {self._places['interactive']} places in front of the engine are taken.")
        if self._taken[priority] >= self._places[priority]:
            raise self._full(f"All {self._places[priority]} places that {priority} requests may take are taken.")

    def reserve(self, priority: Priority = "interactive") -> None:
        """Take a place. Raises QueueFull when none is free, NotReady when the queue is closed."""
        with self._changed:
            self.check_capacity(priority)
            self._taken[priority] += 1

    def release(self, priority: Priority = "interactive") -> None:
        """Give back a reserved place: its work was never put, or has left the queue."""
        with self._changed:
            self._taken[priority] -= 1

    def put(
        self, work: W, deadline: float, size_bytes: int = 0, context: RequestContext = DEFAULT_CONTEXT
    ) -> Item[W, A]:
        """Queue work in a place reserved before, for the same priority. Raises NotReady once closed.

        The deadline is on the queue's clock; the size is what the work holds in memory.
        """
        item: Item[W, A] = Item(work, deadline, size_bytes, self._clock(), context)
        with self._changed:
            if self._closed:
                raise _shutting_down()
            insort(self._items[context.priority], item, key=lambda item: item.deadline)
            self._changed.notify()
        return item

    def discard(self, item: Item[W, A]) -> None:
        """Give back the place of an item that nobody waits for any more, unless a server has it already."""
        with self._changed:
            items = self._items[item.context.priority]
            if item in items:
                items.remove(item)
                self.release(item.context.priority)
        item.future.cancel()

    def take(self, most: int, timeout_s: float | None = None) -> list[Item[W, A]] | None:
        """Block until there is work, and take up to `most` items that are still wanted.

        Cancelled and expired items, and those whose client has gone, are dropped here, so they never reach a server.
        Empty once closed and drained; None when nothing came for `timeout_s` seconds, or for `interrupt`.
        """
        with self._changed:
            while True:
                if self._interrupted and threading.get_ident() in self._interrupted:
                    self._interrupted.discard(threading.get_ident())
                    return None
                taken: list[Item[W, A]] = []
                while len(taken) < most and (item := self._pop(taken)):
                    if self._is_wanted(item):
                        taken.append(item)
                        self._count_skipped(item)
                if taken or self._closed:
                    self._running += len(taken)
                    return taken
                if not self._changed.wait(timeout_s):
                    return None

    def interrupt(self, thread: int) -> None:
        """Have a thread, by threading.get_ident(), return from `take` with None, now or as soon as it comes there."""
        with self._changed:
            self._interrupted.add(thread)
            self._changed.notify_all()

    def record_run(self, items: int, run_s: float) -> None:
        """Record that taken items are done, and how long they ran together, for the Retry-After of later refusals."""
        with self._changed:
            self._running -= items
            old = self._mean_run_s or run_s / items
            self._mean_run_s = old + PACE_WEIGHT * (run_s / items - old)

    def close(self) -> None:
        """Refuse new work; what is queued is still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Answer everything still queued with NotReady."""
        with self._changed:
            while item := self._pop():
                if item.future.set_running_or_notify_cancel():
                    item.future.set_exception(_shutting_down())

    def waiting(self) -> int:
        """Places taken now."""
        return sum(self._taken.values())

    def waiting_bytes(self) -> int:
        """Bytes of the work that waits now."""
        return sum(item.size_bytes for items in self._items.values() for item in tuple(items))

    def _pop(self, taken: Sequence[Item[W, A]] = ()) -> Item[W, A] | None:
        """The next item, out of the queue; None when there is none, or none that may join those taken."""
        interactive, batch = self._items["interactive"], self._items["batch"]
        is_batch_due = not interactive or self._batch_skipped >= BATCH_EVERY - 1
        items = batch if batch and is_batch_due else interactive
        if not items or (taken and self._may_join and not self._may_join(taken[0].work, len(taken), items[0].work)):
            return None
        self.release(items[0].context.priority)
        return items.pop(0)

    def _count_skipped(self, item: Item[W, A]) -> None:
        """Count the interactive items that went before a waiting batch one."""
        passes = item.context.priority == "interactive" and bool(self._items["batch"])
        self._batch_skipped = self._batch_skipped + 1 if passes else 0

    def _is_wanted(self, item: Item[W, A]) -> bool:
        now = self._clock()
        if item.deadline <= now:
            item.future.cancel()
        if not item.future.set_running_or_notify_cancel():
            return False
        # However short it waited: a page that was queued ahead comes here as soon as the one before it is read.
        gone = _gone(item.context)
        if gone is not None:
            item.future.set_exception(gone)
        return gone is None

    def _full(self, detail: str) -> QueueFull:
        ahead = self.waiting() + self._running
        return QueueFull(
            detail,
            "Send the request again after the time that Retry-After names.",
            retry_after_s=max(1, math.ceil(ahead * self._mean_run_s / self._servers)),
        )


def make_check(context: RequestContext, deadline: float, clock: Callable[[], float]) -> Callable[[], None]:
    """A function that running work calls to check whether it is still wanted.

    It raises DeadlineExceeded from the deadline on, and ClientGone within GONE_S after the client has hung up.
    """
    next_check_s = clock() + GONE_S

    def check() -> None:
        nonlocal next_check_s
        now = clock()
        if now >= deadline:
            raise deadline_passed()
        if now >= next_check_s:
            next_check_s = now + GONE_S
            if context.is_gone():
                raise client_gone()

    return check


class NeverStarted(DeadlineExceeded):
    """The deadline passed while the work was still in the queue, behind other work."""


def deadline_passed(kind: type[DeadlineExceeded] = DeadlineExceeded) -> DeadlineExceeded:
    """What ends work that is not done in time."""
    return kind(
        "The answer did not come before the deadline of this request.",
        "Send it again when the service is less busy, or with a longer X-Request-Timeout.",
    )


def _gone(context: RequestContext) -> ClientGone | None:
    """What ends work that nobody waits for any more, or of which that cannot be told; None where it is wanted."""
    try:
        return client_gone() if context.is_gone() else None
    except Exception as error:  # noqa: BLE001  an engine thread that ended would leave all later work undone
        gone = client_gone()
        gone.__cause__ = error
        return gone


def client_gone() -> ClientGone:
    """What ends work that nobody waits for any more."""
    return ClientGone("The client closed its connection before its answer.")


def _shutting_down() -> NotReady:
    return NotReady("This worker is shutting down.", "Send the request again.")
