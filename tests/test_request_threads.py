"""Callers take turns for request threads, few requests start at once, and a crowd is accepted in one turn."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config
from test_request_framing import Loop

from ocrsvc.telemetry.worker_table import State
from ocrsvc.worker.connection import caller_of
from ocrsvc.worker.request_threads import RequestThreads, StartLimiter

FOR_EVER_S = 1e9


@contextmanager
def request_threads(threads: int) -> Iterator[RequestThreads]:
    running = RequestThreads(threads, StartLimiter(1, FOR_EVER_S))
    yield running
    running.shutdown(wait=True)


def test_second_caller_overtakes_a_crowd_while_threads_are_idle() -> None:
    ran: list[str] = []
    goes_on = threading.Event()

    def run(caller: str) -> None:
        goes_on.wait(30)
        ran.append(caller)

    with request_threads(8) as threads:
        crowd = [threads.add("many", partial(run, "many")) for _ in range(50)]
        one = threads.add("one", partial(run, "one"))
        goes_on.set()
        for done in (one, *crowd):
            done.result(30)
    # The crowd has another turn if its first request began before its second came.
    assert ran.index("one") <= 2
    assert len(ran) == 51


def test_error_of_a_request_does_not_stop_the_next() -> None:
    def fail() -> None:
        raise SystemExit(3)

    with request_threads(2) as threads:
        failed, right = threads.add("a", fail), threads.add("a", threading.get_ident)
        with pytest.raises(SystemExit):
            failed.result(30)
        assert right.result(30)


@contextmanager
def crowd(count: int, other: State = State.FREE, in_flight: int = 0) -> Iterator[tuple[Loop, socket.socket]]:
    loop = Loop(Config())
    entry = loop.table.entry(1)
    entry.state, entry.in_flight, loop.table.head.high = other, in_flight, 2
    with closing(loop), socket.create_server(("127.0.0.1", 0), backlog=count) as listener:
        listener.setblocking(False)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(count)]
        yield loop, listener
        for client in clients:
            client.close()


@pytest.mark.parametrize(("other", "in_flight"), [(State.FREE, 0), (State.READY, 50), (State.BOOTING, 0)])
def test_crowd_is_accepted_in_one_turn_without_a_less_busy_sibling(other: State, in_flight: int) -> None:
    with crowd(30, other, in_flight) as (loop, listener):
        loop.accept(listener)
        assert loop.connections == 30


def test_one_connection_per_turn_with_a_less_busy_sibling() -> None:
    with crowd(5, State.READY) as (loop, listener):
        loop.accept(listener)
        assert loop.connections == 1


def test_worker_accepts_at_most_its_connections() -> None:
    with crowd(9) as (loop, listener):
        loop._cfg.set("worker_connections", 7)
        loop.accept(listener)
        assert loop.connections == 7


@pytest.mark.parametrize(
    ("client", "header", "expected"),
    [
        (("192.0.2.1", 5), "", "192.0.2.1"),
        (("192.0.2.1", 5), "X-Real-IP", "198.51.100.7"),
    ],
)
def test_caller_of_a_turn_is_the_requests_caller(client: Any, header: str, expected: str) -> None:
    request = SimpleNamespace(headers=[("HOST", "x"), ("X-REAL-IP", "203.0.113.9, 198.51.100.7")])
    assert caller_of(request, client, header) == expected
