"""One service: what its answers, refusals and failures say about what it can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ocrsvc.client.balancing.address import Address
from ocrsvc.client.balancing.rules import Rules
from ocrsvc.errors import Refused

NEVER: Final = float("-inf")
# A refusal costs the time that its Retry-After says: more is not tried often.
_MORE_AGAIN_S: Final = 30.0
_LATE_TOGETHER_S: Final = 5.0


class Outcome(Enum):
    """How a request at one service ended, as far as that says something about the service."""

    ANSWERED = "answered"
    NOT_CONNECTED = "not connected"
    BROKEN = "broken"
    SILENT = "silent"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Host:
    """One service, and what this client has to do with it now. Moments are by the balancer's clock.

    Attributes:
        at_once: How many requests it takes at once, as far as is known; the part below 1 is on the way to one more.
        probing: Whether a request tries it after it was ejected.
        more_s: From when on it may be sent more at once.
        failures: In a row.
        ejection_s: How long its last ejection was; 0 once it has answered for as long since.
        ejected_until_s: When one request may try it again; None while it takes part.
    """

    address: Address
    at_once: float
    in_flight: int = 0
    probing: bool = False
    refusal: Refused | None = None
    refused_until_s: float = NEVER
    answered_s: float = NEVER
    more_s: float = NEVER
    failures: int = 0
    ejected_until_s: float | None = None
    ejection_s: float = 0.0
    returned_s: float = 0.0

    @property
    def is_ejected(self) -> bool:
        """Whether it takes no part now."""
        return self.ejected_until_s is not None

    def is_free(self, now_s: float) -> bool:
        """Whether it may be asked now, if it has room."""
        may_ask = self.ejected_until_s is None or (now_s >= self.ejected_until_s and not self.probing)
        return may_ask and now_s >= self.refused_until_s

    def state(self, now_s: float) -> str:
        """For people: open, refusing or ejected."""
        return "ejected" if self.is_ejected else "refusing" if now_s < self.refused_until_s else "open"

    def note_answer(self, now_s: float, most: int) -> None:
        """It has answered; where it had as much as it takes, it may slowly be sent more."""
        self.answered_s = now_s
        if self.in_flight + 1 >= int(self.at_once) < most and now_s >= self.more_s:
            self.at_once += 1 / self.at_once

    def note_late(self, now_s: float) -> None:
        """It had more than it could answer in time, perhaps: it is sent half as many at once, once in five seconds."""
        if now_s >= self.more_s - _MORE_AGAIN_S + _LATE_TOGETHER_S and 2 * (self.in_flight + 1) >= int(self.at_once):
            self.at_once, self.more_s = max(1, self.at_once // 2), now_s + _MORE_AGAIN_S

    def note_refusal(self, refusal: Refused, now_s: float, wait_s: float) -> None:
        """It asks for nothing to be sent for so many seconds, and takes no more at once than it has besides."""
        self.refused_until_s, self.refusal = max(self.refused_until_s, now_s + wait_s), refusal
        self.at_once, self.more_s = max(1, min(int(self.at_once), self.in_flight - 1)), now_s + _MORE_AGAIN_S

    def judge(self, outcome: Outcome, rules: Rules, now_s: float, chance: float, *, probe: bool) -> None:
        """Count what a request that has ended says about it; `probe` is whether the request tried an ejected service.

        `chance` is in [0, 1), so that clients that ejected it together do not come back together.
        """
        if outcome is Outcome.ANSWERED:
            self._recover(now_s)
        # What was under way when it was ejected says nothing new.
        elif outcome is not Outcome.UNKNOWN and (probe or not self.is_ejected):
            self.failures = rules.failures if outcome is Outcome.NOT_CONNECTED else self.failures + 1
            if probe or self.failures >= rules.failures:
                self._eject(rules, now_s, chance)

    def _recover(self, now_s: float) -> None:
        self.failures = 0
        if self.is_ejected:
            self.ejected_until_s, self.returned_s = None, now_s
        elif now_s - self.returned_s > self.ejection_s:
            self.ejection_s = 0.0

    def _eject(self, rules: Rules, now_s: float, chance: float) -> None:
        self.ejection_s = min(rules.longest_ejection_s, 2 * self.ejection_s or rules.first_ejection_s)
        self.ejected_until_s = now_s + self.ejection_s * (1 + chance / 4)
        self.failures = 0
