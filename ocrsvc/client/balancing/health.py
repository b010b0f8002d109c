"""How a service is: what its answers and failures make of it. Values in, values out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ocrsvc.client.balancing.rules import Rules


class Outcome(Enum):
    """How a request at one service ended, as far as that says something about the service."""

    ANSWERED = "answered"
    NOT_CONNECTED = "not connected"
    BROKEN = "broken"
    SILENT = "silent"
    FAULTY = "faulty"
    OVERTAKEN = "overtaken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of a service.

    Attributes:
        failures: In a row.
        ejections: How often it was ejected, without a time of good answers as long as the last ejection since.
        ejected_until_s: When one request may try it again, by the clock; None while it takes part.
        ejection_s: How long the last ejection was.
        returned_s: When it last came back.
    """

    failures: int = 0
    ejections: int = 0
    ejected_until_s: float | None = None
    ejection_s: float = 0.0
    returned_s: float = 0.0


HEALTHY: Final = Health()


def after(health: Health, outcome: Outcome, rules: Rules, now_s: float, chance: float, *, probe: bool) -> Health:
    """How a service is after a request to it has ended.

    Args:
        health: How it was.
        outcome: Of the request.
        rules: When it is ejected, and for how long.
        now_s: By the clock.
        chance: A random number in [0, 1), so that clients that ejected it together do not come back together.
        probe: Whether the request was the one that tries an ejected service.
    """
    if outcome is Outcome.UNKNOWN:
        return health
    if outcome is Outcome.ANSWERED:
        return _after_answer(health, now_s)
    if health.ejected_until_s is not None and not probe:
        # What was under way when it was ejected tells nothing new.
        return health
    failures = rules.failures if outcome is Outcome.NOT_CONNECTED else health.failures + 1
    if probe or failures >= rules.failures:
        return _ejected(health, rules, now_s, chance)
    return replace(health, failures=failures)


def _after_answer(health: Health, now_s: float) -> Health:
    if health.ejected_until_s is not None:
        return replace(health, failures=0, ejected_until_s=None, returned_s=now_s)
    if health.ejections and now_s - health.returned_s > health.ejection_s:
        return HEALTHY
    return replace(health, failures=0) if health.failures else health


def _ejected(health: Health, rules: Rules, now_s: float, chance: float) -> Health:
    length_s = min(rules.longest_ejection_s, rules.first_ejection_s * 2**health.ejections)
    until_s = now_s + length_s * (1 + chance / 4)
    # Without a limit the power of two would grow beyond floats.
    return Health(0, min(health.ejections + 1, 60), until_s, length_s, health.returned_s)
