"""Callers take turns for request threads, and the number of requests that start at once is limited."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

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
    may_run = threading.Event()

    def run(caller: str) -> None:
        may_run.wait(30)
        ran.append(caller)

    with request_threads(8) as threads:
        crowd = [threads.add("many", partial(run, "many")) for _ in range(50)]
        one = threads.add("one", partial(run, "one"))
        may_run.set()
        for done in (one, *crowd):
            done.result(30)
    # The crowd gets a second turn if its first request began before its second arrived.
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


@pytest.mark.parametrize(
    ("client", "header", "expected"),
    [(("192.0.2.1", 5), "", "192.0.2.1"), (("192.0.2.1", 5), "X-Real-IP", "198.51.100.7")],
)
def test_the_caller_is_the_client_or_the_address_in_its_header(client: Any, header: str, expected: str) -> None:
    request = SimpleNamespace(headers=[("HOST", "x"), ("X-REAL-IP", "203.0.113.9, 198.51.100.7")])
    assert caller_of(request, client, header) == expected
