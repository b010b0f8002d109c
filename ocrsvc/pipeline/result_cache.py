"""Caches pages by the bytes they were read from, the options, and the engine: in this process or in Redis.

A cache may forget at any time, and one that fails only misses: no request fails, or waits long, because of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import astuple, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import orjson

from ocrsvc import __version__
from ocrsvc.errors import EngineUnavailable
from ocrsvc.formats.page_serialization import InvalidData, pack_page, unpack_page
from ocrsvc.imaging.document import DocumentPage
from ocrsvc.results import EngineInfo, Page, ReadOptions
from ocrsvc.settings.settings import Settings

if TYPE_CHECKING:
    from redis import Redis

LOGGER: Final = logging.getLogger("ocrsvc.cache")
ENTRY_BYTES: Final = 256
"""Of one entry, beside key and value: links and objects of CPython."""

# A healthy Redis answers in less than a millisecond; one that does not must not cost more than a page's decoding.
_REDIS_LIMIT_S: Final = 0.05
_REDIS_PAUSE_S: Final = 5.0  # after a failure
_REDIS_PREFIX: Final = b"ocrsvc:page:"


class MemoryCache:
    """In this process; the least recently used entries go first. Methods may be called from any thread.

    Keys, values and bookkeeping take `most_bytes` together at most.
    """

    def __init__(self, most_bytes: int, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_bytes, self._keep_s, self._clock = most_bytes, keep_s, clock
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self.used_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        """What was put under the key, if it is still known."""
        with self._lock:
            until_s, value = self._entries.get(key, (0.0, None))
            if value is not None and until_s <= self._clock():
                self._forget(key)
                return None
            if value is not None:
                self._entries.move_to_end(key)
            return value

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
        self.used_bytes -= _size(key, self._entries.pop(key)[1])


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + ENTRY_BYTES


class RedisCache:
    """In Redis, which all workers and machines share, and which bounds its own memory (`maxmemory`); for any thread.

    Connects when it is first used. Raises EngineUnavailable where the package redis is not installed, or the URL is
    none (redis://, rediss:// or unix://).
    """

    def __init__(self, url: str, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = _open_client(url)
        self._keep_ms = max(1, round(keep_s * 1000))
        self._clock = clock
        self._pause_until_s = 0.0
        self.close = self._client.close

    def get(self, key: bytes) -> bytes | None:
        """What was put under the key, if it is still known."""
        value = self._try(lambda: self._client.get(_REDIS_PREFIX + key))
        return value if isinstance(value, bytes) else None

    def put(self, key: bytes, value: bytes) -> None:
        """Keep a value for a while."""
        self._try(lambda: self._client.set(_REDIS_PREFIX + key, value, px=self._keep_ms))

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


def _open_client(url: str) -> Redis:
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise EngineUnavailable(
            "OCRSVC_CACHE_URL needs the package redis, which is not installed.", "Install ocrsvc[redis]."
        ) from error
    # Its own retries would take seconds, in the thread of a request.
    retry = Retry(NoBackoff(), 0)
    try:
        return Redis.from_url(url, socket_timeout=_REDIS_LIMIT_S, socket_connect_timeout=_REDIS_LIMIT_S, retry=retry)
    except ValueError:
        # Its text quotes what it takes for the port, which may be a part of the password.
        raise EngineUnavailable(
            "OCRSVC_CACHE_URL is no address of a Redis.",
            "Write redis://HOST:PORT/NUMBER, and characters in a password that addresses give a meaning as %23 for #.",
        ) from None


class ResultCache:
    """Pages by what they were read from, in a cache. Errors are never cached: the next try may go better."""

    def __init__(self, cache: MemoryCache | RedisCache) -> None:
        self._cache = cache
        self.close = cache.close

    def key_of(self, page: DocumentPage, options: ReadOptions, engine: EngineInfo, digest: str = "") -> bytes:
        """Bytes that are the same only for the same page, options, engine and version of this service.

        The digest is of the model's files, whose version may be another one tomorrow; empty without OCRSVC_MODELS.
        """
        known = (astuple(options), astuple(engine))
        if digest:
            # However the model was named, it is this one.
            known = (astuple(replace(options, model=None, tier=None)), (*astuple(engine), digest))
        key = blake2b(repr((__version__, *known)).encode(), digest_size=32).digest()
        return blake2b(page.document.key(page.number), digest_size=32, key=key).digest()

    def get(self, key: bytes) -> Page | None:
        """The page, if it is still cached; a damaged value counts as a miss."""
        value = self._cache.get(key)
        if value is None:
            return None
        try:
            return unpack_page(orjson.loads(value))
        except (InvalidData, orjson.JSONDecodeError):
            return None

    def put(self, key: bytes, page: Page) -> None:
        """Cache a page."""
        self._cache.put(key, orjson.dumps(pack_page(page)))


def open_result_cache(settings: Settings) -> ResultCache | None:
    """The cache that the settings ask for; None when they ask for none. Raises EngineUnavailable."""
    if settings.cache_url is not None:
        return ResultCache(RedisCache(settings.cache_url, settings.cache_s))
    return ResultCache(MemoryCache(settings.cache_bytes, settings.cache_s)) if settings.cache_bytes else None
