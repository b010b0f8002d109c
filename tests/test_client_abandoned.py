"""Requests that nobody waits for any more, and that the garbage collector ends wherever it runs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest

from ocrsvc.client.balancing.address import Address
from ocrsvc.client.balancing.balancer import Balancer
from ocrsvc.client.balancing.changes import Changes
from ocrsvc.client.balancing.health import Outcome
from ocrsvc.client.balancing.rules import Rules
from ocrsvc.client.transport.connection import Request
from ocrsvc.client.transport.pool import ConnectionPool

A = Address("http", "a", "a", 8000)
LIMIT_S = 20.0


def ends(work: Callable[[], object]) -> bool:
    """Whether it ends at all, in a thread of its own."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return not thread.is_alive()


def abandon(request: Iterator[None]) -> None:
    """Begin it, and leave it to the garbage collector alone."""
    next(request)
    cycle: list[object] = [request]
    cycle.append(cycle)


def collect() -> None:
    gc.collect()


class CollectingAddress(Address):
    """An address that is looked up while the garbage collector runs."""

    def __hash__(self) -> int:
        gc.collect()
        return super().__hash__()


@pytest.fixture(autouse=True)
def no_other_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_wait_that_is_ended_while_others_are_woken_is_not_woken() -> None:
    changes, wakes = Changes(), list[bool]()

    def wait() -> Iterator[None]:
        with changes.seen().waking(lambda: wakes.append(True)):
            yield

    with changes.seen().waking(collect):
        abandon(wait())
        assert ends(changes.tell)
    assert not wakes


def test_a_place_that_is_given_back_while_another_is_taken_is_free() -> None:
    balancer = Balancer([A], Rules(), lambda: float(gc.collect() * 0), lambda: 0.0)

    def request() -> Iterator[None]:
        place = balancer.take()
        assert place is not None
        try:
            yield
        finally:
            balancer.end(place, Outcome.UNKNOWN)

    abandon(request())
    assert ends(balancer.take)
    assert [state.in_flight for state in balancer.states()] == [1]


def test_connections_are_dropped_while_one_is_taken() -> None:
    pool, dropped = ConnectionPool(None, 1.0), list[bool]()

    def request() -> Iterator[None]:
        try:
            yield
        finally:
            pool.drop(A)
            dropped.append(True)

    abandon(request())
    # Its first step looks for a connection, and opens none.
    exchange = pool.exchange(CollectingAddress("http", "b", "b", 8000), Request("GET", "/", {}))
    assert ends(lambda: next(exchange))
    exchange.close()
    assert dropped == [True]
