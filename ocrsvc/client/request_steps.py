"""The steps of one request to several services: one attempt after another, and a second beside one that takes long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ocrsvc.client.balancing.attempts import Attempts, Pause
from ocrsvc.client.balancing.balancer import Balancer, Place
from ocrsvc.client.balancing.discovery import Discovery
from ocrsvc.client.balancing.hedging import Hedging
from ocrsvc.client.transport.attempt import Attempt
from ocrsvc.client.transport.connection import Request, Response
from ocrsvc.client.transport.pool import ConnectionPool
from ocrsvc.client.transport.waits import Call, Steps, Wait, WaitForAny
from ocrsvc.errors import CallerError, NotConnected, OcrsvcError

T = TypeVar("T")

# When a request under way first looks whether its service still takes part.
_LOOK_S: Final = 0.5
_LONGEST_LOOK_S: Final = 5.0
_LOOK_UP_AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What the requests of one client share."""

    balancer: Balancer
    discovery: Discovery
    hedging: Hedging
    pool: ConnectionPool
    clock: Callable[[], float]


class RequestSteps(Generic[T]):
    """One request; for one thread, or task.

    Args:
        shared: What it shares with others.
        attempts: Where it goes.
        make_request: What is sent, for so many seconds that are left.
        parse: What a response holds; raises OcrsvcError.
        parts: How many times as long as others it may take.
    """

    def __init__(
        self,
        shared: Shared,
        attempts: Attempts,
        make_request: Callable[[float], Request],
        parse: Callable[[Response], T],
        parts: int,
    ) -> None:
        self._shared, self._attempts, self._make_request, self._parse = shared, attempts, make_request, parse
        self._parts = parts
        self._running: list[Attempt] = []
        self._won: Attempt | None = None
        self._look_s = float("inf")

    def steps(self) -> Steps[T]:
        """What it needs, one after the other; returns what the answer holds. Raises OcrsvcError."""
        try:
            while True:
                if not self._running:
                    self._begin_first((yield from self._place()))
                yield from self._wait()
                for attempt in [each for each in self._running if each.needs is None]:
                    self._running.remove(attempt)
                    if (found := self._result(attempt)) is not None:
                        return found
                self._send_twice()
        finally:
            for attempt in self._running:
                attempt.close()
                first = self._won is not None and attempt.began_s < self._won.began_s
                self._attempts.abandoned(attempt.place, overtaken=first)
                self._forget_if_ejected(attempt.place)

    def _place(self) -> Steps[Place]:
        """A place at a service, waited for. Raises OcrsvcError."""
        try:
            while True:
                yield from self._look_up()
                step = self._attempts.next()
                if not isinstance(step, Pause):
                    return step
                self._shared.discovery.refresh(_LOOK_UP_AGAIN_S)
                yield WaitForAny((), min(step.seconds, max(0.0, self._attempts.left_s())), step.change)
        except BaseException:
            # It may have been woken for a place that it does not take: that is another's.
            self._shared.balancer.tell_room()
            raise

    def _look_up(self) -> Steps[None]:
        if (look_up := self._shared.discovery.needed()) is not None:
            try:
                yield Call(look_up)
            except NotConnected as error:
                self._attempts.unknown(error)

    def _begin_first(self, place: Place) -> None:
        self._shared.hedging.begun()
        self._begin(place)
        self._look_s = self._next_look_s()

    def _next_look_s(self) -> float:
        """When the first attempt is long, or sooner: by then it may be known better what is long.

        Looks are further apart the longer it takes: hundreds of requests may wait for slow pages.
        """
        now_s, long_s = self._shared.clock(), self._long_s()
        look_s = now_s + min(_LONGEST_LOOK_S, max(_LOOK_S, now_s - self._running[0].began_s))
        return look_s if long_s <= now_s else min(long_s, look_s)

    def _long_s(self) -> float:
        """When the first attempt is long, by the clock."""
        delay_s = self._shared.hedging.delay_s(self._parts)
        return float("inf") if delay_s is None else self._running[0].began_s + delay_s

    def _begin(self, place: Place) -> None:
        self._attempts.begun(place)
        try:
            request = self._make_request(max(0.001, self._attempts.left_s()))
            exchange = self._shared.pool.exchange(place.address, request)
            self._running.append(Attempt(place, exchange, self._shared.clock))
        except BaseException:
            self._attempts.abandoned(place, overtaken=False)
            raise

    def _wait(self) -> Steps[None]:
        """Until an attempt has gone on, or it is time to look at them. Raises DeadlineExceeded."""
        if (calling := next((each for each in self._running if isinstance(each.needs, Call)), None)) is not None:
            yield from _call(calling)
            return
        waits = tuple(each.needs for each in self._running if isinstance(each.needs, Wait))
        if len(waits) < len(self._running):
            return
        # There is nothing to look for once it is under way twice.
        look_s = self._look_s if len(self._running) == 1 else float("inf")
        until_s = min(self._attempts.end_s, look_s, *(each.limit_s for each in self._running))
        ready: Sequence[int] = yield WaitForAny(waits, max(0.0, until_s - self._shared.clock()))
        for attempt in self._running:
            if isinstance(attempt.needs, Wait) and attempt.needs.fd in ready:
                attempt.go_on()
            else:
                attempt.expire()
        if self._attempts.left_s() <= 0:
            self._miss_deadline()

    def _miss_deadline(self) -> None:
        """Raises DeadlineExceeded, unless an answer has come with the last moment."""
        if any(attempt.needs is None for attempt in self._running):
            return
        error = self._attempts.too_late()
        while self._running:
            attempt = self._running.pop()
            attempt.close()
            self._attempts.failed(attempt.place, error)
            self._forget_if_ejected(attempt.place)
        raise error

    def _result(self, attempt: Attempt) -> T | None:
        """What the answer holds; None where the request goes on. Raises OcrsvcError."""
        try:
            found = self._parsed(attempt)
        except OcrsvcError as error:
            goes_on = self._attempts.failed(attempt.place, error)
            self._forget_if_ejected(attempt.place)
            if isinstance(error, CallerError) or not (goes_on or self._running):
                raise
            return None
        except BaseException:
            self._attempts.abandoned(attempt.place, overtaken=False)
            raise
        self._won = attempt
        self._attempts.answered(attempt.place)
        began_s = min(each.began_s for each in [attempt, *self._running])
        self._shared.hedging.note(self._shared.clock() - began_s, self._parts)
        return found

    def _forget_if_ejected(self, place: Place) -> None:
        """A service that does not take part is later tried over a new connection."""
        if self._shared.balancer.is_ejected(place):
            self._shared.pool.drop(place.address)

    def _parsed(self, attempt: Attempt) -> T:
        if attempt.error is not None:
            raise attempt.error
        assert attempt.response is not None
        return self._parse(attempt.response)

    def _send_twice(self) -> None:
        """Send it to a second service too, where the first takes long, if that is allowed, or takes no part now."""
        now_s = self._shared.clock()
        if len(self._running) != 1 or now_s < self._look_s:
            return
        self._look_s = self._next_look_s()
        first = self._running[0].place
        ejected, long = self._shared.balancer.is_ejected(first), now_s >= self._long_s()
        if not (ejected or long) or (second := self._attempts.second(first)) is None:
            return
        if ejected or self._shared.hedging.spend():
            self._begin(second)
        else:
            self._attempts.abandoned(second, overtaken=False)


def _call(attempt: Attempt) -> Steps[None]:
    """Have a function called that an attempt needs."""
    assert isinstance(attempt.needs, Call)
    try:
        came = yield attempt.needs
    except OSError as error:
        attempt.fail(error)
    else:
        attempt.go_on(came)
