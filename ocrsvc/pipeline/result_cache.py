"""Caches the results of pages, keyed by page bytes, options and engine, in this process or in Redis.

A cache may drop entries at any time. If the cache fails, pages are read without it; no request fails or waits long.
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
DEFAULT_BYTES: Final = 64 << 20
ENTRY_BYTES: Final = 256  # memory of an entry's CPython objects, in addition to its key and value
# A healthy Redis answers within a millisecond; a slow one must not cost more time than reading the page again.
_REDIS_LIMIT_S: Final = 0.05
_REDIS_PAUSE_S: Final = 5.0  # after a failure, time in which Redis is not used
_REDIS_PREFIX: Final = b"ocrsvc:page:"


class MemoryCache:
    """An LRU cache in this process; thread-safe. Keys, values and per-entry overhead take at most `max_bytes`."""

    def __init__(self, max_bytes: int, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._keep_s, self._clock = max_bytes, keep_s, clock
        self._entries: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self.used_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it is missing or expired."""
        with self._lock:
            until_s, value = self._entries.get(key, (0.0, None))
            if value is not None and until_s <= self._clock():
                self._forget(key)
                return None
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value for `keep_s` seconds, unless it is larger than the whole cache."""
        if _size(key, value) > self._max_bytes:
            return
        with self._lock:
            if key in self._entries:
                self._forget(key)
            self._entries[key] = self._clock() + self._keep_s, value
            self.used_bytes += _size(key, value)
            while self.used_bytes > self._max_bytes:
                self._forget(next(iter(self._entries)))

    def close(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self.used_bytes = 0

    def _forget(self, key: bytes) -> None:
        self.used_bytes -= _size(key, self._entries.pop(key)[1])


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + ENTRY_BYTES


class RedisCache:
    """A cache in Redis, shared by workers and hosts, connected on first use. Raises EngineUnavailable for a bad URL."""

    def __init__(self, url: str, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = _open_client(url)
        self._keep_ms = max(1, round(keep_s * 1000))
        self._clock = clock
        self._pause_until_s = 0.0
        self.close = self._client.close

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it is missing, or while Redis fails."""
        value = self._try(lambda: self._client.get(_REDIS_PREFIX + key))
        return value if isinstance(value, bytes) else None

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value for `keep_s` seconds."""
        self._try(lambda: self._client.set(_REDIS_PREFIX + key, value, px=self._keep_ms))

    def _try(self, action: Callable[[], object]) -> object:
        """Run the action; if it fails, log it, and return None without trying again for _REDIS_PAUSE_S."""
        from redis.exceptions import RedisError

        if self._clock() < self._pause_until_s:
            return None
        try:
            return action()
        except RedisError as error:
            self._pause_until_s = self._clock() + _REDIS_PAUSE_S
            LOGGER.warning("The result cache does not use Redis for %.0f s: %s", _REDIS_PAUSE_S, error)
            return None


def _open_client(url: str) -> Redis:
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise EngineUnavailable(
            "OCRSVC_CACHE_URL needs the package redis, which is not installed.", "Install the extra redis."
        ) from error
    # No retries: those of the Redis library would block the request's thread for seconds.
    retry = Retry(NoBackoff(), 0)
    try:
        return Redis.from_url(url, socket_timeout=_REDIS_LIMIT_S, socket_connect_timeout=_REDIS_LIMIT_S, retry=retry)
    except ValueError:
        # Raised `from None`: the message of the ValueError may quote part of the password, mistaken for a port.
        raise EngineUnavailable(
            "OCRSVC_CACHE_URL is not a Redis URL.",
            "Write redis://HOST:PORT/NUMBER, with special characters of a password percent-encoded (%23 for #).",
        ) from None


class ResultCache:
    """Stores pages in a cache. Errors are never cached, because the next attempt may succeed.

    If `is_for_all` is False, only requests that ask for caching use the cache.
    """

    def __init__(self, cache: MemoryCache | RedisCache, *, is_for_all: bool = True) -> None:
        self._cache, self.is_for_all = cache, is_for_all
        self.close = cache.close

    def key_of(self, page: DocumentPage, options: ReadOptions, engine: EngineInfo, digest: str = "") -> bytes:
        """A page's key: a hash of its bytes, options, engine, the service's version and a repository model's digest."""
        inputs = (astuple(options), astuple(engine))
        if digest:
            # The options' model name is left out: the digest identifies the model, however the request named it.
            inputs = (astuple(replace(options, model=None)), (*astuple(engine), digest))
        key = blake2b(repr((__version__, *inputs)).encode(), digest_size=32).digest()
        return blake2b(page.document.key(page.number), digest_size=32, key=key).digest()

    def get(self, key: bytes) -> Page | None:
        """The cached page; None if it is missing or its value is damaged."""
        value = self._cache.get(key)
        if value is None:
            return None
        try:
            return unpack_page(orjson.loads(value))
        except (InvalidData, orjson.JSONDecodeError):
            return None

    def put(self, key: bytes, page: Page) -> None:
        """Store a page."""
        self._cache.put(key, orjson.dumps(pack_page(page)))


def open_result_cache(settings: Settings) -> ResultCache | None:
    """Open the result cache that the settings describe; None if it is off. Raises EngineUnavailable."""
    if settings.cache_url is not None:
        return ResultCache(RedisCache(settings.cache_url, settings.cache_s))
    if settings.cache_bytes == 0:
        return None
    memory = MemoryCache(settings.cache_bytes or DEFAULT_BYTES, settings.cache_s)
    return ResultCache(memory, is_for_all=settings.cache_bytes is not None)
