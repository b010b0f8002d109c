"""What a store of API keys does: it has the keys, and counts what is used of them for all workers that share it."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from ocrsvc.access.api_keys import KeyEntry, KeyLimits, StoredKey

LimitName = Literal["requests", "concurrency", "pages-a-day", "pages-a-month"]
"""As the RateLimit headers name them."""

LIMIT_NAMES: Final[tuple[LimitName, ...]] = get_args(LimitName)

LEASE_S: Final = 5.0
"""What a worker has reserved is given back when it has not called `keep_alive` for this long."""

SETTLED_DAYS: Final = 2
"""How long the total of a series is kept: a series counts the pages of requests that were admitted on one day."""

_USAGE_DAYS: Final = 400
_DAY_S: Final = 86_400


class Need(NamedTuple):
    """What is to be reserved: requests under way, requests that may begin by the rate, pages that may be counted."""

    requests: int = 0
    tokens: int = 0
    pages: int = 0


class Hold(NamedTuple):
    """What one worker has reserved of a key: requests under way, and pages that the store has not counted yet."""

    requests: int = 0
    pages: int = 0


class Usage(NamedTuple):
    """What was used of one key: requests under way, pages reserved and not counted yet, pages counted.

    After `full_s` seconds the whole of `requests_per_s` is available again.
    """

    requests: int = 0
    reserved: int = 0
    today: int = 0
    this_month: int = 0
    full_s: float = 0.0


def usage_to_dict(entry: KeyEntry, usage: Usage, now_s: float) -> dict[str, Any]:
    """A key, its state, and what is used of it, for operators."""
    used = {
        "pages_today": usage.today,
        "pages_this_month": usage.this_month,
        "pages_reserved": usage.reserved,
        "requests_under_way": usage.requests,
    }
    return {**entry.as_dict(), "state": entry.state(now_s), "usage": used}


class LimitReached(Exception):
    """A limit of a key is reached; nothing was reserved. The gate turns it into QuotaExceeded."""

    def __init__(self, limit: LimitName) -> None:
        super().__init__(limit)
        self.limit = limit


def day_of(now_s: float) -> str:
    """The day of a moment in Unix seconds, by UTC, such as 2027-03-31; its first seven characters are the month."""
    return _day_text(int(now_s // _DAY_S))


@lru_cache(maxsize=2)
def _day_text(number: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(number * _DAY_S))


def oldest_day(days: int = _USAGE_DAYS) -> str:
    """The day this long ago; usage is kept for somewhat more than a year."""
    return day_of(time.time() - days * _DAY_S)


def burst_s(requests_per_s: float) -> float:
    """How far ahead of its rate a key may be: by one second's requests, or by a single one."""
    return max(1.0, 1.0 / requests_per_s)


class KeyStore(Protocol):
    """Any thread may call. Each method raises KeysUnavailable within about a second when the store does not answer.

    Each worker has its own name in the store. Its reservations are given back when another worker begins under that
    name, or when it stops calling `keep_alive`; pages that were counted stay counted. A `day` is that of the request.
    """

    def version(self) -> int:
        """A number that changes with every change of a key."""

    def keys(self) -> list[StoredKey]:
        """All keys by name, revoked and expired ones included."""

    def put(self, key: StoredKey) -> bool:
        """Add or replace a key; False, and nothing done, when its document in the store is not `key.document`."""

    def usage(self, name: str, day: str) -> Usage:
        """What is used of a key on a day and in its month."""

    def begin_worker(self, worker: str) -> None:
        """Give back what an earlier worker of this name has reserved, and forget days that are too old."""

    def keep_alive(self, worker: str) -> None:
        """Note that this worker lives, and give back what dead ones have reserved."""

    def reserve(self, name: str, worker: str, limits: KeyLimits, held: Hold, need: Need, spare: int, day: str) -> None:
        """Reserve `need` for a worker that holds `held` of a key. Sent twice it is done once, but for the rate.

        Raises LimitReached, and reserves nothing, when less than `spare` times the need is left.
        """

    def settle(self, name: str, worker: str, held: Hold, series: int = 0, total: int = 0, day: str = "") -> None:
        """Set what a worker holds of a key, and count the pages of one of its series up to `total`.

        A series (see `ocrsvc.access.page_counts`) belongs to one key and day; what is sent again counts once.
        """

    def close(self) -> None:
        """Close the connection."""
