"""One request on its way over the services: which is asked next, how long is waited, and which failure stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ocrsvc.client.address import Address
from ocrsvc.client.balancer import Balancer, Outcome, Place, Rules
from ocrsvc.errors import CallerError, DeadlineExceeded, NotConnected, OcrsvcError, Refused, ServerError, Unreachable

# Tries after which a connection that breaks is given up; a refusal is retried until the deadline.
BROKEN_TRIES: Final = 5
# The shortest pause, also after a service that says "at once": it must not be asked in a busy loop.
FIRST_WAIT_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 1.0
_FAULTS: Final = 2
# Whose fault another failure was is seen when another service has the same request.
_OUTCOMES: Final = (
    (NotConnected, Outcome.NOT_CONNECTED),
    (Unreachable, Outcome.BROKEN),
    (DeadlineExceeded, Outcome.SILENT),
    (CallerError, Outcome.ANSWERED),
)


class Attempts:
    """The attempts at one request; clock and chance are those of the balancer, `last` is the error that came last."""

    def __init__(
        self,
        balancer: Balancer,
        timeout_s: float,
        rules: Rules,
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._balancer, self._timeout_s, self._rules = balancer, timeout_s, rules
        self._clock, self._chance = clock, chance
        self._end_s = clock() + timeout_s
        self._avoid: set[Address] = set()
        self.last: OcrsvcError | None = None
        self._broken = 0
        self._pauses = 0
        self._unreachable_since_s: float | None = None
        self._faults: list[Place] = []

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._end_s - self._clock()

    def next(self) -> Place | float:
        """Where to send the request now, or how many seconds to wait for room before asking again.

        Raises DeadlineExceeded; Unreachable where none was reached for as long as the rules allow; Refused where all
        refuse for longer than there is time.
        """
        if self.left_s() <= 0:
            raise self.too_late() from self.last
        place = self._balancer.take(self._avoid, ejected=not self._avoid and self._unreachable_since_s is not None)
        if place is None:
            return self._pause_s()
        # Whatever comes, the request goes to another one next.
        self._avoid.add(place.host.address)
        return place

    def too_late(self) -> DeadlineExceeded:
        """The error of a request that had no answer before its deadline; its cause is what failed last."""
        said = f" The last try ended with: {self.last.detail}" if self.last else ""
        return DeadlineExceeded(
            f"No answer came within {self._timeout_s:g} seconds.{said}", "Allow more time, or try later."
        )

    def answered(self, place: Place) -> None:
        """A service has answered; those that were at fault before, for the same request, are to blame."""
        self._balancer.end(place, Outcome.ANSWERED)
        for faulty in self._faults:
            self._balancer.blame(faulty)

    def failed(self, place: Place, error: OcrsvcError) -> bool:
        """The attempt at a service has ended with an error: whether the request goes on; otherwise the error stands."""
        self.last = error
        if isinstance(error, Refused):
            wait_s = max(FIRST_WAIT_S, error.retry_after_s) * (1 + self._chance() / 4)
            self._balancer.refuse(place, error, wait_s)
            return True
        self._balancer.end(place, next((one for kind, one in _OUTCOMES if isinstance(error, kind)), Outcome.UNKNOWN))
        if isinstance(error, Unreachable):
            return self._after_unreachable(error)
        if isinstance(error, CallerError | DeadlineExceeded) or not isinstance(error, ServerError):
            return False
        self._faults.append(place)
        return len(self._faults) < min(_FAULTS, len(self._balancer))

    def abandoned(self, place: Place) -> None:
        """The attempt at a service was given up: its caller waits no more."""
        self._balancer.end(place, Outcome.UNKNOWN)

    def _after_unreachable(self, error: Unreachable) -> bool:
        if isinstance(error, NotConnected):
            if self._unreachable_since_s is None:
                self._unreachable_since_s = self._clock()
            return True
        self._unreachable_since_s = None
        self._broken += 1
        # What was sent may be what breaks them: it does not go to every service there is.
        return self._broken < BROKEN_TRIES

    def _pause_s(self) -> float:
        """Raises Refused, Unreachable."""
        self._avoid.clear()
        refused = self._balancer.refusal()
        if refused is None and not self._balancer.is_busy():
            return self._unreachable_pause_s()
        self._unreachable_since_s = None
        # An ejection that ends meanwhile is noticed after the longest pause.
        if refused is None:
            return _LONGEST_PAUSE_S
        refusal, wait_s = refused
        if wait_s >= self.left_s():
            raise refusal
        return min(wait_s, _LONGEST_PAUSE_S)

    def _unreachable_pause_s(self) -> float:
        """Raises Unreachable."""
        now_s = self._clock()
        if self._unreachable_since_s is None:
            self._unreachable_since_s = now_s
        if now_s - self._unreachable_since_s >= self._rules.patience_s:
            raise self.last or Unreachable(
                f"None of {len(self._balancer)} services can be reached.", "Check their addresses and that they run."
            )
        self._pauses += 1
        pause_s = min(_LONGEST_PAUSE_S, FIRST_WAIT_S * 2.0 ** min(self._pauses - 1, 9))
        return pause_s * (0.5 + self._chance() / 2)
