"""What a store of API keys does: keeps them, and counts what is used of them, for all workers that share it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol, get_args

from ocrsvc.access.records import KeyLimits, StoredKey, Usage

LimitName = Literal["rate", "concurrency", "day", "month"]

LIMIT_NAMES: Final[Mapping[str, LimitName]] = {name: name for name in get_args(LimitName)}
"""By what a store calls them."""

_KEPT_DAYS: Final = 400
_DAY_S: Final = 86_400


class LimitReached(Exception):
    """A limit of a key is reached; nothing was reserved. The gate makes a QuotaExceeded of it."""

    def __init__(self, limit: LimitName) -> None:
        super().__init__(limit)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Period:
    """The day and the month, by UTC, that a request's pages belong to: those in which it was admitted."""

    day: str
    month: str


def period_of(now_s: float) -> Period:
    """Day and month of a moment in Unix seconds."""
    return _period_of_day(int(now_s // _DAY_S))


@lru_cache(maxsize=2)
def _period_of_day(number: int) -> Period:
    day = time.strftime("%Y-%m-%d", time.gmtime(number * _DAY_S))
    return Period(day, day[:7])


def oldest_period() -> str:
    """What is counted is kept from this day on: somewhat more than a year."""
    return period_of(time.time() - _KEPT_DAYS * _DAY_S).day


class KeyStore(Protocol):
    """All methods may be called from any thread, and raise KeysUnavailable within a second when the store is not there.

    A worker has a name of its own in it. What a worker has reserved is given back when another begins under its name,
    or when it has not shown for a while that it lives; pages that are counted stay so.
    """

    def version(self) -> int:
        """A number that grows with every change of a key."""

    def keys(self) -> list[StoredKey]:
        """All keys, those revoked or expired as well, by name."""

    def put(self, key: StoredKey) -> None:
        """Add a key, or replace the one of this name."""

    def usage(self, name: str, period: Period) -> Usage:
        """What is used of a key."""

    def begin_worker(self, worker: str) -> None:
        """A worker of this name begins: give back what one before it still has reserved."""

    def keep_alive(self, worker: str) -> None:
        """This worker lives; and give back what the dead have reserved."""

    def admit(self, number: str, /, name: str, worker: str, limits: KeyLimits, pages: int, period: Period) -> None:
        """Count a request as under way, and reserve pages for it. Raises LimitReached.

        Args:
            number: Of the request, unlike that of any other.
            name: Of the key.
            worker: Its worker's name.
            limits: The key's.
            pages: So many.
            period: To which they belong.
        """

    def reserve(self, number: str, /, name: str, worker: str, limits: KeyLimits, pages: int, period: Period) -> None:
        """Reserve more pages. Raises LimitReached."""

    def settle(
        self, number: str, /, name: str, worker: str, requests: int, reserved: int, pages: int, period: Period
    ) -> None:
        """Count pages as answered, and give back so many reserved pages and requests under way.

        Takes effect once for each number, however often it is tried after a failure.
        """

    def close(self) -> None:
        """Close the connection."""
