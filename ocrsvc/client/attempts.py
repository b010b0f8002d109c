"""Attempts of one request: which service to try next, how long to wait, and when to give up."""

from typing import Final

from ocrsvc.client.address import Address
from ocrsvc.client.balancer import Balancer, Clock, Outcome, Place, Rules
from ocrsvc.errors import CallerError, DeadlineExceeded, NotConnected, OcrsvcError, Refused, ServerError, Unreachable

# Give up after this many broken connections. Refusals by overloaded services are retried until the deadline.
MAX_BROKEN: Final = 5
# The shortest pause between attempts, even if Retry-After is 0, to prevent a busy loop.
FIRST_WAIT_S: Final = 0.2
_MAX_PAUSE_S: Final = 1.0
_FAULTS: Final = 2
# Outcome by error class. For any other error, a service is blamed only if another one answers the same request.
_OUTCOMES: Final = (
    (NotConnected, Outcome.NOT_CONNECTED),
    (Unreachable, Outcome.BROKEN),
    (DeadlineExceeded, Outcome.SILENT),
    (CallerError, Outcome.ANSWERED),
)


class Attempts:
    """The attempts at sending one request. `clock` and `chance` are as in Balancer; `last` is the latest error."""

    def __init__(self, balancer: Balancer, timeout_s: float, rules: Rules, clock: Clock, chance: Clock) -> None:
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
        """A slot at the service to try next, or the seconds to wait before calling `next` again.

        Raises DeadlineExceeded; Unreachable if no service was reachable for `Rules.patience_s`; Refused if all services
        refuse requests until after the deadline.
        """
        if self.left_s() <= 0:
            raise self.too_late() from self.last
        place = self._balancer.take(self._avoid, ejected=not self._avoid and self._unreachable_since_s is not None)
        if place is None:
            return self._pause_s()
        # Send the next attempt to another service.
        self._avoid.add(place.host.address)
        return place

    def too_late(self) -> DeadlineExceeded:
        """The error to raise if the deadline has passed without an answer."""
        last = f" Last error: {self.last.detail}" if self.last else ""
        return DeadlineExceeded(f"No answer within {self._timeout_s:g} seconds.{last}", "Allow more time or try later.")

    def answered(self, place: Place) -> None:
        """Record an answer. It shows that the request is harmless, so blame the services that failed with it before."""
        self._balancer.end(place, Outcome.ANSWERED)
        for faulty in self._faults:
            self._balancer.blame(faulty)

    def failed(self, place: Place, error: OcrsvcError) -> bool:
        """Record an error; return whether to try again."""
        self.last = error
        if not isinstance(error, NotConnected):
            self._unreachable_since_s = None
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
        """Record an attempt that its caller cancelled."""
        self._balancer.end(place, Outcome.UNKNOWN)

    def _after_unreachable(self, error: Unreachable) -> bool:
        if isinstance(error, NotConnected):
            now_s = self._clock()
            if self._unreachable_since_s is None:
                self._unreachable_since_s = now_s
            # Try each service at least once, even after `patience_s`.
            has_untried = len(self._avoid) < len(self._balancer)
            return has_untried or now_s - self._unreachable_since_s < self._rules.patience_s
        self._broken += 1
        # The request itself may crash services, so do not send it to all of them.
        return self._broken < MAX_BROKEN

    def _pause_s(self) -> float:
        """Seconds to wait until a service may be usable. Raises Refused, Unreachable."""
        self._avoid.clear()
        refused = self._balancer.refusal()
        if refused is None and not self._balancer.is_busy():
            # Wait for the result of another request's probe, which shows whether a service works again.
            may_wait = self._balancer.is_probing() and self._rules.patience_s > 0
            return _MAX_PAUSE_S if may_wait else self._unreachable_pause_s()
        self._unreachable_since_s = None
        # Limit the pause, because nothing wakes this request when the ejection of a service ends.
        if refused is None:
            return _MAX_PAUSE_S
        refusal, wait_s = refused
        if wait_s >= self.left_s():
            raise refusal
        return min(wait_s, _MAX_PAUSE_S)

    def _unreachable_pause_s(self) -> float:
        """Seconds to wait while no service is reachable. Raises Unreachable."""
        now_s = self._clock()
        if self._unreachable_since_s is None:
            self._unreachable_since_s = now_s
        if now_s - self._unreachable_since_s >= self._rules.patience_s:
            raise self.last or Unreachable(
                f"None of {len(self._balancer)} services can be reached.", "Check their addresses and that they run."
            )
        self._pauses += 1
        pause_s = min(_MAX_PAUSE_S, FIRST_WAIT_S * 2.0 ** min(self._pauses - 1, 9))
        return pause_s * (0.5 + self._chance() / 2)
