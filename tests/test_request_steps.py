"""How often a request to several services looks around while it is under way, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import select
import threading
from dataclasses import dataclass, field
from itertools import count

import pytest

from ocrsvc import errors
from ocrsvc.client.balancing.address import Address, Services
from ocrsvc.client.balancing.attempts import Attempts
from ocrsvc.client.balancing.balancer import Balancer
from ocrsvc.client.balancing.changes import Changes, Left
from ocrsvc.client.balancing.discovery import Discovery
from ocrsvc.client.balancing.health import Outcome
from ocrsvc.client.balancing.hedging import Hedging
from ocrsvc.client.balancing.rules import Rules
from ocrsvc.client.request_steps import RequestSteps, Shared
from ocrsvc.client.transport.connection import Request, Response
from ocrsvc.client.transport.pool import ConnectionPool
from ocrsvc.client.transport.runners import run, run_async
from ocrsvc.client.transport.waits import Exchange, Steps, Wait, WaitForAny

A, B = (Address("http", name, name, 8000) for name in "ab")


class SilentPool(ConnectionPool):
    """Services that never answer, unless it is to be with an error."""

    def __init__(self) -> None:
        super().__init__(None, 2.0)
        self.asked: list[Address] = []
        self.error: errors.OcrsvcError | None = None
        self._fds = count(100)

    def exchange(self, address: Address, _request: Request) -> Exchange[Response]:
        self.asked.append(address)
        if self.error is not None:
            raise self.error
        fd = next(self._fds)
        while True:
            yield Wait(fd, select.POLLIN)


@dataclass
class Bench:
    """Services, and requests to them that nobody answers."""

    rules: Rules
    now_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = SilentPool()
        self.balancer = Balancer([A, B], self.rules, self.clock, lambda: 0.0)

    def clock(self) -> float:
        return self.now_s

    def steps(self, timeout_s: float) -> Steps[None]:
        discovery = Discovery(Services((A, B), ()), self.balancer, 30.0, self.clock, lambda _name, _port: [])
        shared = Shared(self.balancer, discovery, Hedging(self.rules, self.clock), self.pool, self.clock)
        attempts = Attempts(self.balancer, timeout_s, self.rules, self.clock, lambda: 0.0)
        return RequestSteps(shared, attempts, lambda _: Request("POST", "/", {}), lambda _: None, 1).steps()

    def wait_until(self, steps: Steps[None], until_s: float) -> None:
        """Let the request wait as long as it wants to, as often as it wants to, until then."""
        while self.now_s < until_s:
            step = steps.send(() if self.waits_s else None)
            assert isinstance(step, WaitForAny)
            self.waits_s.append(step.seconds)
            assert step.seconds > 0.01
            self.now_s += step.seconds


def test_a_request_that_waits_long_looks_around_less_and_less() -> None:
    bench = Bench(Rules())
    bench.wait_until(bench.steps(600.0), 60.0)
    assert bench.waits_s[0] == 0.5
    assert len(bench.waits_s) < 20
    assert max(bench.waits_s) == 5.0


def test_a_request_that_is_under_way_twice_waits_for_answers_and_nothing_else() -> None:
    bench = Bench(Rules(hedge_share=0.5, hedge_first_s=1.0))
    steps = bench.steps(600.0)
    with pytest.raises(errors.DeadlineExceeded):
        bench.wait_until(steps, 601.0)
    assert sorted(bench.pool.asked, key=str) == [A, B]
    assert bench.now_s == 600.0
    assert len(bench.waits_s) < 5


def test_one_whose_service_is_ejected_goes_to_another_soon() -> None:
    bench = Bench(Rules())
    steps = bench.steps(600.0)
    bench.wait_until(steps, 4.0)
    [first] = bench.pool.asked
    place = bench.balancer.take([B if first == A else A])
    assert place is not None
    bench.balancer.end(place, Outcome.NOT_CONNECTED)
    began_s = bench.now_s
    bench.wait_until(steps, began_s + 6.0)
    assert bench.pool.asked == [first, A if first == B else B]


def test_one_that_is_left_while_it_waits_for_a_place_ends() -> None:
    bench, left = Bench(Rules(at_once=8)), Left()
    for address in (A, B):
        place, other = (bench.balancer.take([B if address == A else A]) for _ in range(2))
        assert place is not None
        assert other is not None
        bench.balancer.refuse(place, errors.QueueFull("full"), 0.0)
    ended = threading.Thread(target=leave, args=(bench.steps(600.0), left))
    ended.start()
    left.set()
    ended.join(10)
    assert not ended.is_alive()
    assert not bench.pool.asked


def test_a_pause_in_a_thread_ends_with_the_change() -> None:
    changes, left, paused = Changes(), Left(), list[bool]()
    seen = changes.seen()
    thread = threading.Thread(target=lambda: paused.append(left.pause(60.0, seen)))
    thread.start()
    changes.tell()
    thread.join(10)
    assert paused == [False]


def test_a_pause_of_a_task_ends_with_the_change() -> None:
    bench = Bench(Rules(at_once=8))

    async def read() -> None:
        places = [bench.balancer.take() for _ in range(4)]
        under_way = [place for place in places if place is not None]
        for _ in range(2):
            bench.balancer.refuse(under_way.pop(), errors.QueueFull("full"), 0.0)
        reading = asyncio.ensure_future(run_async(bench.steps(600.0)))
        await asyncio.sleep(0)
        threading.Thread(target=bench.balancer.end, args=(under_way.pop(), Outcome.ANSWERED)).start()
        await reading

    bench.pool.error = errors.BrokenImage("x")
    with pytest.raises(errors.BrokenImage):
        asyncio.run(asyncio.wait_for(read(), 10))
    assert len(bench.pool.asked) == 1


def leave(steps: Steps[None], left: Left) -> None:
    with pytest.raises(errors.NotConnected):
        run(steps, left)
