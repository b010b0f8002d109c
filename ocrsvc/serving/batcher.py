"""A dynamic batcher: runs work items of the same bucket together, even if they come from different requests.

The size of a batch is limited by cost (in pixels, because one wide line costs as much as ten narrow ones) and by count;
it starts at the latest when its oldest item has waited `max_wait_s`. The batcher knows nothing about OCR. Triton's
dynamic batcher and TensorFlow Serving's batching sessions work alike, but limit the count only.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from ocrsvc.errors import EngineFailed, NotReady

B = TypeVar("B", bound=Hashable)
W = TypeVar("W")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a batch: total cost (a single item may cost more), number of items, and wait for more items."""

    max_cost: int
    max_items: int
    max_wait_s: float


@dataclass(slots=True)
class _Item(Generic[W, A]):
    work: W
    cost: int
    queued_at_s: float
    future: Future[A] = field(default_factory=Future)


class Batcher(Generic[B, W, A]):
    """Runs batches in `runners` threads; if a batch fails, its items run again one by one, so only bad items fail."""

    def __init__(self, run: Callable[[B, Sequence[W]], Sequence[A]], limits: Limits, *, runners: int = 1) -> None:
        self._run = run
        self._limits = limits
        self._buckets: dict[B, deque[_Item[W, A]]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run_thread, name=f"batch-{number}", daemon=True) for number in range(runners)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, bucket: B, work: W, cost: int) -> Future[A]:
        """Queue an item. Raises NotReady if the batcher is closed."""
        item: _Item[W, A] = _Item(work, cost, time.monotonic())
        with self._changed:
            if self._closed:
                raise NotReady("This worker is shutting down.", "Send the request again.")
            self._buckets.setdefault(bucket, deque()).append(item)
            self._changed.notify()
        return item.future

    def close(self) -> None:
        """Run the queued items, then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run_thread(self) -> None:
        while chosen := self._next():
            bucket, items = chosen
            wanted = [item for item in items if item.future.set_running_or_notify_cancel()]
            if wanted:
                self._run_batch(bucket, wanted)

    def _next(self) -> tuple[B, list[_Item[W, A]]] | None:
        """Wait for the next batch; None once the batcher is closed and empty."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._buckets or self._closed)
                if not self._buckets:
                    return None
                bucket, items = min(self._buckets.items(), key=lambda entry: self._due_s(entry[1]))
                left_s = self._due_s(items) - time.monotonic()
                if self._closed or left_s <= 0:
                    return bucket, self._take_batch(bucket)
                self._changed.wait(left_s)

    def _due_s(self, items: deque[_Item[W, A]]) -> float:
        """When these items should run: now if they fill a batch, else `max_wait_s` after the oldest was queued."""
        is_full = len(items) >= self._limits.max_items or sum(item.cost for item in items) >= self._limits.max_cost
        return items[0].queued_at_s + (0.0 if is_full else self._limits.max_wait_s)

    def _take_batch(self, bucket: B) -> list[_Item[W, A]]:
        """Remove and return the oldest items that fit into one batch."""
        items = self._buckets[bucket]
        batch = [items.popleft()]
        cost = batch[0].cost
        while items and len(batch) < self._limits.max_items and cost + items[0].cost <= self._limits.max_cost:
            cost += items[0].cost
            batch.append(items.popleft())
        if not items:
            del self._buckets[bucket]
        if self._buckets:
            # Wake another runner for the remaining items, because no later event would.
            self._changed.notify()
        return batch

    def _run_batch(self, bucket: B, items: list[_Item[W, A]]) -> None:
        answers = run_each_on_failure(partial(self._run, bucket), [item.work for item in items])
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, BaseException):
                item.future.set_exception(answer)
            else:
                item.future.set_result(answer)


def run_each_on_failure(run: Callable[[Sequence[W]], Sequence[A]], works: Sequence[W]) -> Sequence[A | BaseException]:
    """Run a batch and return its answers; if it fails, run its items one by one, each with its own answer or error."""
    try:
        answers = run(works)
        if len(answers) != len(works):
            raise EngineFailed(f"The engine gave {len(answers)} answers for {len(works)} work items.")
        return answers
    except BaseException as failure:  # noqa: BLE001  the batch loop must survive every engine failure
        if len(works) == 1:
            return [failure]
        return [answer for work in works for answer in run_each_on_failure(run, [work])]
