"""Requests that take turns for what few may do at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from support import wait_until

from ocrsvc.errors import ClientGone, QueueFull
from ocrsvc.records import no_check
from ocrsvc.serving.limiter import Limiter

WAIT_S = 30.0


class Waiting:
    """Requests that wait for a limiter, in threads of a pool; `entered` are the callers in the order they came in."""

    def __init__(self, limiter: Limiter, pool: ThreadPoolExecutor) -> None:
        self._limiter, self._pool = limiter, pool
        self.entered: list[str] = []

    def add(self, caller: str, check: Callable[[], object] = no_check) -> Future[None]:
        """One more, which waits when this returns."""
        before = len(self._limiter._turns)
        done = self._pool.submit(self._enter, caller, check)
        wait_until(lambda: len(self._limiter._turns) > before)
        return done

    def _enter(self, caller: str, check: Callable[[], object]) -> None:
        with self._limiter.take(check, caller):
            self.entered.append(caller)


@contextmanager
def taken(limiter: Limiter) -> Iterator[tuple[Waiting, ExitStack]]:
    """Requests may wait within the block; the one that has the place leaves when the stack is closed."""
    with ThreadPoolExecutor(8) as pool, ExitStack() as holding:
        holding.enter_context(limiter.take(no_check, "first"))
        yield Waiting(limiter, pool), holding


def test_callers_take_turns() -> None:
    with taken(Limiter(1, 8)) as (waiting, holding):
        all_done = [waiting.add(caller) for caller in ("many", "many", "many", "one")]
        holding.close()
        for done in all_done:
            done.result(WAIT_S)
    assert waiting.entered == ["many", "one", "many", "many"]


def test_one_caller_leaves_places_to_others() -> None:
    limiter = Limiter(1, 4, waiting_each=2)
    with taken(limiter) as (waiting, _):
        for caller in ("many", "many", "one"):
            waiting.add(caller)
        with pytest.raises(QueueFull, match="This caller"), limiter.take(no_check, "many"):
            pass
        waiting.add("another")
        with pytest.raises(QueueFull, match="Too many"), limiter.take(no_check, "a fifth"):
            pass


def test_a_request_that_stops_waiting_leaves_its_place() -> None:
    gone = threading.Event()

    def check() -> None:
        if gone.is_set():
            raise ClientGone("gone")

    limiter = Limiter(1, 1)
    with taken(limiter) as (waiting, holding):
        left = waiting.add("a", check)
        gone.set()
        assert isinstance(left.exception(WAIT_S), ClientGone)
        after = waiting.add("b")
        holding.close()
        after.result(WAIT_S)
    with limiter.take(no_check):
        assert waiting.entered == ["b"]
