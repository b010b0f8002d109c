"""One attempt at a request: an exchange with one service, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ocrsvc.client.balancing.balancer import Place
from ocrsvc.client.transport.connection import Response
from ocrsvc.client.transport.waits import Call, Exchange, Expired, Wait
from ocrsvc.errors import OcrsvcError


class Attempt:
    """An exchange that goes on each time that what it waits for has come; for one thread, or task.

    Attributes:
        place: At the service.
        began_s: By the clock.
        needs: What it waits for; None once it has ended.
        response: What came, once it has ended well.
        error: Once it has ended otherwise.
    """

    def __init__(self, place: Place, exchange: Exchange[Response], clock: Callable[[], float]) -> None:
        self.place, self._exchange, self._clock = place, exchange, clock
        self.began_s = clock()
        self.needs: Wait | Call | None = None
        self.response: Response | None = None
        self.error: OcrsvcError | None = None
        self._limit_s = float("inf")
        self.go_on()

    def go_on(self, came: Any = None) -> None:
        """What it waited for has come."""
        self._advance(lambda: self._exchange.send(came))

    def fail(self, error: Exception) -> None:
        """What it waited for has not come."""
        self._advance(lambda: self._exchange.throw(error))

    def expire(self) -> bool:
        """End a wait that has taken as long as it may; whether it had."""
        if self._clock() < self._limit_s:
            return False
        self.fail(Expired())
        return True

    @property
    def limit_s(self) -> float:
        """Until when it may wait, by the clock."""
        return self._limit_s

    def close(self) -> None:
        """End it; its connection is closed."""
        self._exchange.close()

    def _advance(self, step: Callable[[], Wait | Call]) -> None:
        try:
            self.needs = needs = step()
        except StopIteration as done:
            self.needs, self.response = None, done.value
        except OcrsvcError as error:
            self.needs, self.error = None, error
        else:
            limit_s = needs.limit_s if isinstance(needs, Wait) else None
            self._limit_s = float("inf") if limit_s is None else self._clock() + limit_s
