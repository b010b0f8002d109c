"""The interface of API key stores, which hold the keys and count their usage for all workers that share the store."""

import time
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from ocrsvc.access.api_keys import KeyEntry, KeyLimits, StoredKey

LimitName = Literal["requests", "concurrency", "pages-a-day", "pages-a-month"]
"""Names of limits, as in the RateLimit headers."""

LIMIT_NAMES: Final[tuple[LimitName, ...]] = get_args(LimitName)

LEASE_S: Final = 5.0
"""A worker's reservations are released if it has not called `keep_alive` for this long."""

SETTLED_DAYS: Final = 2
"""Days for which a series' total is kept, to ignore repeated settlements; a series counts a key's pages on one day."""

_USAGE_DAYS: Final = 400
_DAY_S: Final = 86_400


class Need(NamedTuple):
    """What to reserve: concurrent requests, tokens of the rate limit (one per request), and pages."""

    requests: int = 0
    tokens: int = 0
    pages: int = 0


class Hold(NamedTuple):
    """One worker's reservation of a key: concurrent requests, and pages that the store has not counted as used yet."""

    requests: int = 0
    pages: int = 0


class Usage(NamedTuple):
    """The usage of one key: concurrent requests, reserved pages, and pages counted on a day and in its month.

    After `full_s` seconds a full burst of requests is available again.
    """

    requests: int = 0
    reserved: int = 0
    today: int = 0
    this_month: int = 0
    full_s: float = 0.0


def usage_to_dict(entry: KeyEntry, usage: Usage, now_s: float) -> dict[str, Any]:
    """A key with its state and usage as JSON values, for operators."""
    used = {"pages_today": usage.today, "pages_this_month": usage.this_month, "pages_reserved": usage.reserved}
    used |= {"requests_under_way": usage.requests}
    return {**entry.as_dict(), "state": entry.state(now_s), "usage": used}


class LimitReached(Exception):
    """A key's limit is reached, and nothing was reserved. `Admission` turns it into QuotaExceeded."""

    def __init__(self, limit: LimitName) -> None:
        super().__init__(limit)
        self.limit = limit


def day_of(now_s: float) -> str:
    """The UTC day of a Unix time, such as 2027-03-31; its first seven characters are the month."""
    return time.strftime("%Y-%m-%d", time.gmtime(now_s))


def oldest_day(days: int = _USAGE_DAYS) -> str:
    """The day this many days ago; by default the oldest day whose usage is kept."""
    return day_of(time.time() - days * _DAY_S)


def burst_s(requests_per_s: float) -> float:
    """Seconds of the rate limit that a burst may use: 1, or below one request per second the time for one request."""
    return max(1.0, 1.0 / requests_per_s)


class KeyStore(Protocol):
    """A key store. Any thread may call. Each method raises KeysUnavailable after a second without a response.

    Each worker has its own name in the store. Its reservations are released if another worker begins with that name, or
    if it stops calling `keep_alive`; counted pages stay counted. `day` is the day of the request.
    """

    def version(self) -> int:
        """A number that changes with every change of a key."""

    def keys(self) -> list[StoredKey]:
        """All keys sorted by name, including revoked and expired ones."""

    def put(self, key: StoredKey) -> bool:
        """Add or replace a key; False, without a change, unless the store still holds the JSON `key.document`."""

    def usage(self, name: str, day: str) -> Usage:
        """A key's usage on a day and in its month."""

    def begin_worker(self, worker: str) -> None:
        """Release the reservations of an earlier worker with this name, and delete old usage."""

    def keep_alive(self, worker: str) -> None:
        """Note that this worker is alive, and release the reservations of dead workers."""

    def reserve(self, name: str, worker: str, limits: KeyLimits, held: Hold, need: Need, spare: int, day: str) -> None:
        """Reserve `need` for a worker that holds `held` of a key. Idempotent, except for the rate limit.

        Raises LimitReached, and reserves nothing, unless the limits have room for `spare` times `need`.
        """

    def settle(self, name: str, worker: str, held: Hold, series: int = 0, total: int = 0, day: str = "") -> None:
        """Set a worker's reservation of a key, and count the pages of one of its series up to `total`. Idempotent.

        A series (see `ocrsvc.access.page_counts`) belongs to one key and day.
        """

    def close(self) -> None:
        """Close the connection to the store."""
