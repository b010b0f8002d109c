"""What a store of API keys does: keeps them, and counts what is used of them, for all workers that share it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol, get_args

from ocrsvc.access.records import Hold, KeyLimits, Need, StoredKey, Usage

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


def oldest_period(days: int = _KEPT_DAYS) -> str:
    """The day so long ago; what is counted is kept for somewhat more than a year."""
    return period_of(time.time() - days * _DAY_S).day


class KeyStore(Protocol):
    """All methods may be called from any thread, and raise KeysUnavailable within a second when the store is not there.

    A worker has a name of its own in it. What a worker has reserved is given back when another begins under its name,
    or when it has not shown for a while that it lives; pages that are counted stay so.
    """

    def version(self) -> int:
        """A number that grows with every change of a key."""

    def keys(self) -> list[StoredKey]:
        """All keys, those revoked or expired as well, by name."""

    def put(self, key: StoredKey) -> bool:
        """Add a key, or replace the one of this name, if that is still the document that `key` was made from.

        Returns:
            False when another has changed it meanwhile; nothing was done.
        """

    def usage(self, name: str, period: Period) -> Usage:
        """What is used of a key."""

    def begin_worker(self, worker: str) -> None:
        """A worker of this name begins: give back what one before it still has reserved."""

    def keep_alive(self, worker: str) -> None:
        """This worker lives; and give back what the dead have reserved."""

    def reserve(
        self, name: str, worker: str, limits: KeyLimits, held: Hold, need: Need, spare: int, period: Period
    ) -> None:
        """Reserve something for a worker, beyond what it holds. Sent twice it is done once, but for the rate.

        Args:
            name, limits: Of the key.
            worker: The worker.
            held: What it holds before.
            need: What it needs.
            spare: How many times this must be left; 1 is just enough.
            period: To which the pages belong.

        Raises:
            LimitReached: Not so much is left; nothing was reserved.
        """

    def hold(self, name: str, worker: str, held: Hold) -> None:
        """A worker holds this of a key from now on."""

    def settle(self, name: str, worker: str, held: Hold, number: int, pages: int, period: Period) -> None:
        """Count pages of a key, and set what the worker holds.

        The pages count once for each number of a worker and key, however often it is sent; numbers only grow.
        """

    def close(self) -> None:
        """Close the connection."""
