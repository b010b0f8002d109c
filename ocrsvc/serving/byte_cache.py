"""A cache of bytes under a key, in this process or in Redis.

Knows nothing about OCR. A cache may forget at any time, and one that fails only misses: no request fails, or waits
long, because of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ocrsvc.errors import EngineUnavailable

if TYPE_CHECKING:
    from redis import Redis

LOGGER: Final = logging.getLogger("ocrsvc.cache")

# Of one entry, beside its value: key, links and objects of CPython.
ENTRY_BYTES: Final = 256
# A healthy Redis answers in less than a millisecond; one that does not must not cost more than a page's decoding.
_REDIS_LIMIT_S: Final = 0.05
# After a failure, Redis is left alone for so long.
_REDIS_PAUSE_S: Final = 5.0
_REDIS_PREFIX: Final = b"ocrsvc:page:"


class MemoryCache:
    """In this process; the least recently used entries go first. Methods may be called from any thread.

    Keys, values and bookkeeping take `most_bytes` together at most.
    """

    def __init__(self, most_bytes: int, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes = most_bytes
        self._keep_s = keep_s
        self._clock = clock
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self.used_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        """What was put under the key, if it is still known."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry[0] <= self._clock():
                self._forget(key)
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def put(self, key: bytes, value: bytes) -> None:
        """Keep a value for a while; one that is larger than the whole cache is not kept."""
        if _size(key, value) > self._most_bytes:
            return
        with self._lock:
            if key in self._entries:
                self._forget(key)
            self._entries[key] = self._clock() + self._keep_s, value
            self.used_bytes += _size(key, value)
            while self.used_bytes > self._most_bytes:
                self._forget(next(iter(self._entries)))

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.used_bytes = 0

    def _forget(self, key: bytes) -> None:
        _, value = self._entries.pop(key)
        self.used_bytes -= _size(key, value)


class RedisCache:
    """In Redis, which all workers and machines share, and which bounds its own memory (`maxmemory`); for any thread.

    Connects when it is first used. Raises EngineUnavailable where the package redis is not installed, or the URL is
    none (redis://, rediss:// or unix://).
    """

    def __init__(self, url: str, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = _open_client(url)
        self._keep_s = keep_s
        self._clock = clock
        self._pause_until_s = 0.0

    def get(self, key: bytes) -> bytes | None:
        """What was put under the key, if it is still known."""
        value = self._try(lambda: self._client.get(_REDIS_PREFIX + key))
        return value if isinstance(value, bytes) else None

    def put(self, key: bytes, value: bytes) -> None:
        """Keep a value for a while."""
        self._try(lambda: self._client.set(_REDIS_PREFIX + key, value, px=max(1, round(self._keep_s * 1000))))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _try(self, action: Callable[[], object]) -> object:
        """The action's result; None while Redis is not to be had, which is said once a pause."""
        from redis.exceptions import RedisError

        if self._clock() < self._pause_until_s:
            return None
        try:
            return action()
        except RedisError as error:
            self._pause_until_s = self._clock() + _REDIS_PAUSE_S
            LOGGER.warning("The cache does without Redis for %.0f s: %s", _REDIS_PAUSE_S, error)
            return None


Cache = MemoryCache | RedisCache


def _open_client(url: str) -> Redis:
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise EngineUnavailable(
            "OCRSVC_CACHE_URL needs the package redis, which is not installed.", "Install ocrsvc[redis]."
        ) from error
    try:
        return Redis.from_url(
            url,
            socket_timeout=_REDIS_LIMIT_S,
            socket_connect_timeout=_REDIS_LIMIT_S,
            # Its own retries would take seconds, in the thread of a request.
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        # Its text quotes what it takes for the port, which may be a part of the password.
        raise EngineUnavailable(
            "OCRSVC_CACHE_URL is no address of a Redis.",
            "Write redis://HOST:PORT/NUMBER, and signs in a password that addresses give a meaning as %23 for #.",
        ) from None


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + ENTRY_BYTES
