"""One request on its way over the services: which is asked next, how long is waited, and which failure stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ocrsvc.client.balancing.address import Address
from ocrsvc.client.balancing.balancer import Balancer, Place
from ocrsvc.client.balancing.changes import Seen
from ocrsvc.client.balancing.health import Outcome
from ocrsvc.client.balancing.rules import Rules
from ocrsvc.client.retry_policy import BROKEN_TRIES, FIRST_WAIT_S, no_answer_in_time
from ocrsvc.errors import CallerError, DeadlineExceeded, NotConnected, OcrsvcError, Refused, ServerError, Unreachable

_LONGEST_PAUSE_S: Final = 1.0
_FAULTS: Final = 2
# Changes are told; this is for what nobody tells.
_LONGEST_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing can be asked for so many seconds, or until a change."""

    seconds: float
    change: Seen | None = field(default=None, compare=False)


class Attempts:
    """The attempts at one request; for the one thread, or task, that makes it.

    Args:
        balancer: The services.
        timeout_s: How long the request may take, everything included.
        rules: How long it goes on while nothing can be reached.
        clock, chance: As of the balancer.
    """

    def __init__(
        self,
        balancer: Balancer,
        timeout_s: float,
        rules: Rules,
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._balancer, self._timeout_s, self._rules, self._clock, self._chance = (
            balancer,
            timeout_s,
            rules,
            clock,
            chance,
        )
        self.end_s: Final = clock() + timeout_s
        self._avoid: set[Address] = set()
        self._last: OcrsvcError | None = None
        self._broken = 0
        self._pauses = 0
        self._unreachable_since_s: float | None = None
        self._faults: list[Place] = []

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.end_s - self._clock()

    def next(self) -> Place | Pause:
        """Where to send the request now, or how long to wait before asking again.

        Raises:
            DeadlineExceeded: There is no time left.
            Unreachable: Nothing could be reached for as long as the rules allow.
            Refused: All refuse, and for longer than there is time.
        """
        if self.left_s() <= 0:
            raise self.too_late()
        # Before looking, so that no change between that and the pause is missed.
        change = self._balancer.room.seen()
        place = self._balancer.take(self._avoid, ejected=not self._avoid and self._unreachable_since_s is not None)
        return place or self._pause(change)

    def unknown(self, error: NotConnected) -> None:
        """No service is known, for this reason."""
        self._last = error

    def too_late(self) -> DeadlineExceeded:
        """The error of a request that had no answer before its deadline, with what failed before as its cause."""
        error = no_answer_in_time(self._timeout_s, self._last)
        error.__cause__ = self._last
        return error

    def second(self, first: Place) -> Place | None:
        """Where to send the request a second time while it is under way there; None where none may answer sooner."""
        return self._balancer.take_second(first, self._avoid)

    def begun(self, place: Place) -> None:
        """The request goes to this service: whatever comes, it goes to another one next."""
        self._avoid.add(place.address)

    def answered(self, place: Place) -> None:
        """A service has answered; those that were at fault before, for the same request, are to blame."""
        self._balancer.end(place, Outcome.ANSWERED)
        for faulty in self._faults:
            self._balancer.blame(faulty)

    def failed(self, place: Place, error: OcrsvcError) -> bool:
        """The attempt at a service has ended with an error.

        Returns:
            Whether the request goes on; otherwise the error stands.
        """
        self._last = error
        if isinstance(error, Refused):
            wait_s = max(FIRST_WAIT_S, error.retry_after_s) * (1 + self._chance() / 4)
            self._balancer.refuse(place, error, wait_s)
            return True
        self._balancer.end(place, _outcome_of(error))
        if isinstance(error, Unreachable):
            return self._after_unreachable(error)
        if isinstance(error, CallerError | DeadlineExceeded) or not isinstance(error, ServerError):
            return False
        self._faults.append(place)
        return len(self._faults) < min(_FAULTS, len(self._balancer))

    def abandoned(self, place: Place, *, overtaken: bool) -> None:
        """The attempt at a service was given up: another one was faster, or nobody waits any more."""
        self._balancer.end(place, Outcome.OVERTAKEN if overtaken else Outcome.UNKNOWN)

    def _after_unreachable(self, error: Unreachable) -> bool:
        if isinstance(error, NotConnected):
            if self._unreachable_since_s is None:
                self._unreachable_since_s = self._clock()
            return True
        self._unreachable_since_s = None
        self._broken += 1
        # What was sent may be what breaks them: it does not go to every service there is.
        return self._broken < BROKEN_TRIES

    def _pause(self, change: Seen) -> Pause:
        """Raises Refused, Unreachable."""
        self._avoid.clear()
        refusal = self._balancer.refusal()
        if refusal is not None:
            return self._wait_for(*refusal, change)
        if self._balancer.is_full():
            self._unreachable_since_s = None
            return Pause(min(_LONGEST_WAIT_S, self._balancer.opens_s()), change)
        now_s = self._clock()
        if self._unreachable_since_s is None:
            self._unreachable_since_s = now_s
        if now_s - self._unreachable_since_s >= self._rules.patience_s:
            raise self._last or Unreachable(
                f"None of {len(self._balancer)} services can be reached.", "Check their addresses and that they run."
            )
        self._pauses += 1
        pause_s = min(_LONGEST_PAUSE_S, FIRST_WAIT_S * 2 ** min(self._pauses - 1, 9))
        return Pause(pause_s * (0.5 + self._chance() / 2))

    def _wait_for(self, refusal: Refused, wait_s: float, change: Seen) -> Pause:
        """All that take part refuse: raises the refusal where it outlasts the request."""
        self._unreachable_since_s = None
        if wait_s >= self.left_s():
            raise refusal
        return Pause(min(wait_s, self._balancer.opens_s()), change)


def _outcome_of(error: OcrsvcError) -> Outcome:
    if isinstance(error, NotConnected):
        return Outcome.NOT_CONNECTED
    if isinstance(error, Unreachable):
        return Outcome.BROKEN
    if isinstance(error, DeadlineExceeded):
        return Outcome.SILENT
    # Whose fault another failure was is seen when another service has the same request.
    return Outcome.ANSWERED if isinstance(error, CallerError) else Outcome.UNKNOWN
