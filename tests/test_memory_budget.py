"""Memory budgets, and limiters where callers take turns."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import wait_until

from ocrsvc.errors import BodyTooLarge, ClientGone, QueueFull
from ocrsvc.results import no_check
from ocrsvc.serving.limiter import Limiter
from ocrsvc.serving.memory_budget import Budget, Share


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["take", "give_back", "release"]), st.integers(0, 60))))
def test_held_memory_never_exceeds_the_total(steps: list[tuple[int, str, int]]) -> None:
    budget, held = Budget(100), [0] * 4
    shares = [Share(budget) for _ in held]
    for owner, action, size in steps:
        if action == "release":
            shares[owner].release()
            held[owner] = 0
        elif action == "give_back":
            shares[owner].give_back(min(size, held[owner]))
            held[owner] -= min(size, held[owner])
        elif sum(held) + size <= 100:
            shares[owner].take(size)
            held[owner] += size
        else:
            with pytest.raises(BodyTooLarge if held[owner] + size > 100 else QueueFull):
                shares[owner].take(size)
        assert budget.held_bytes == sum(held) <= 100


WAIT_S = 30.0


class Waiting:
    """Requests that wait for a limiter in threads; `entered` lists callers in the order admitted."""

    def __init__(self, limiter: Limiter, pool: ThreadPoolExecutor) -> None:
        self._limiter, self._pool = limiter, pool
        self.entered: list[str] = []

    def add(self, caller: str, check: Callable[[], object] = no_check) -> Future[None]:
        """Start a request and return once it waits."""
        before = len(self._limiter._turns)
        done = self._pool.submit(self._enter, caller, check)
        wait_until(lambda: len(self._limiter._turns) > before)
        return done

    def _enter(self, caller: str, check: Callable[[], object]) -> None:
        with self._limiter.take(check, caller):
            self.entered.append(caller)


@contextmanager
def taken(limiter: Limiter) -> Iterator[tuple[Waiting, ExitStack]]:
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


def test_one_caller_cannot_take_all_waiting_places() -> None:
    limiter = Limiter(1, 4, waiting_each=2)
    with taken(limiter) as (waiting, _):
        for caller in ("many", "many", "one"):
            waiting.add(caller)
        with pytest.raises(QueueFull, match="This caller"), limiter.take(no_check, "many"):
            pass
        waiting.add("another")
        with pytest.raises(QueueFull, match="Too many"), limiter.take(no_check, "a fifth"):
            pass


def test_cancelled_request_frees_its_place() -> None:
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
