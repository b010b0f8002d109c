"""A dynamic batcher: runs work of one bucket together, from any requests.

A batch is bounded by cost (pixels, not items: one wide line is as much as ten narrow ones) and by how long its oldest
item has waited; a runner with nothing to do does not wait for more than that. Knows nothing about OCR. The rule is that
of Triton's dynamic batcher and TensorFlow Serving's batching sessions, with cost in place of count.
"""

from __future__ import annotations

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
    """How large a batch may become, unless it is one piece, and how long its oldest piece waits for company."""

    most_cost: int
    most_items: int
    longest_wait_s: float


@dataclass(slots=True)
class _Piece(Generic[W, A]):
    work: W
    cost: int
    since_s: float
    future: Future[A] = field(default_factory=Future)


class Batcher(Generic[B, W, A]):
    """Collects work and runs it, in as many threads of its own as there are runners.

    `run` answers each work of a bucket, in order. Where it raises, the pieces of the batch are run once more one by
    one, so that only the one that caused it fails.
    """

    def __init__(self, run: Callable[[B, Sequence[W]], Sequence[A]], limits: Limits, *, runners: int = 1) -> None:
        self._run = run
        self._limits = limits
        self._buckets: dict[B, deque[_Piece[W, A]]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run_thread, name=f"batch-{number}", daemon=True) for number in range(runners)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, bucket: B, work: W, cost: int) -> Future[A]:
        """Queue a piece of work. Raises NotReady once closed."""
        piece: _Piece[W, A] = _Piece(work, cost, time.monotonic())
        with self._changed:
            if self._closed:
                raise NotReady("This worker is shutting down.", "Send the request again.")
            self._buckets.setdefault(bucket, deque()).append(piece)
            self._changed.notify()
        return piece.future

    def close(self) -> None:
        """Run what is there, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run_thread(self) -> None:
        while chosen := self._next():
            bucket, pieces = chosen
            wanted = [piece for piece in pieces if piece.future.set_running_or_notify_cancel()]
            if wanted:
                self._run_batch(bucket, wanted)

    def _next(self) -> tuple[B, list[_Piece[W, A]]] | None:
        """The next batch; None once closed and empty."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._buckets or self._closed)
                if not self._buckets:
                    return None
                bucket, pieces = min(self._buckets.items(), key=lambda entry: self._due_s(entry[1]))
                left_s = self._due_s(pieces) - time.monotonic()
                if self._closed or left_s <= 0:
                    return bucket, self._take_batch(bucket)
                self._changed.wait(left_s)

    def _due_s(self, pieces: deque[_Piece[W, A]]) -> float:
        """When these are run: at once where they fill a batch, else when the oldest has waited."""
        is_full = (
            len(pieces) >= self._limits.most_items or sum(piece.cost for piece in pieces) >= self._limits.most_cost
        )
        return pieces[0].since_s + (0.0 if is_full else self._limits.longest_wait_s)

    def _take_batch(self, bucket: B) -> list[_Piece[W, A]]:
        """The oldest pieces that fit into one batch."""
        pieces = self._buckets[bucket]
        batch = [pieces.popleft()]
        cost = batch[0].cost
        while pieces and len(batch) < self._limits.most_items and cost + pieces[0].cost <= self._limits.most_cost:
            cost += pieces[0].cost
            batch.append(pieces.popleft())
        if not pieces:
            del self._buckets[bucket]
        if self._buckets:
            # For a runner that is idle now: nothing else notifies it of what stays.
            self._changed.notify()
        return batch

    def _run_batch(self, bucket: B, pieces: list[_Piece[W, A]]) -> None:
        answers = run_each_on_failure(partial(self._run, bucket), [piece.work for piece in pieces])
        for piece, answer in zip(pieces, answers, strict=True):
            if isinstance(answer, BaseException):
                piece.future.set_exception(answer)
            else:
                piece.future.set_result(answer)


def run_each_on_failure(run: Callable[[Sequence[W]], Sequence[A]], works: Sequence[W]) -> Sequence[A | BaseException]:
    """What `run` answers to each work; if it fails as a whole, each is run alone, and only the one at fault fails."""
    try:
        answers = run(works)
        if len(answers) != len(works):
            raise EngineFailed(f"The engine gave {len(answers)} answers to {len(works)} pieces of work.")
        return answers
    except BaseException as failure:  # noqa: BLE001  the batch loop: whatever an engine throws, it goes on
        if len(works) == 1:
            return [failure]
        return [answer for work in works for answer in run_each_on_failure(run, [work])]
