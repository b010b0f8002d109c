"""The key store in Redis or Valkey, for workers on many machines.

Each call is an atomic run of one Lua script, with Redis's own clock. A call may be repeated if its response was lost,
because calls send totals, not increments: a worker's reservation of a key, and a key's pages on one day.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ocrsvc.access import key_store
from ocrsvc.access.api_keys import KeyLimits, StoredKey, read_keys, write_key
from ocrsvc.access.key_store import Hold, LimitReached, Need, Usage
from ocrsvc.errors import KeysUnavailable, SettingsError

TRY_S: Final = 0.5
"""Timeout of one try; each call is tried up to two times."""

_DAY_S: Final = 86_400


class RedisStore:
    """See `ocrsvc.access.key_store.KeyStore`. Connects at the first call, so it may be created before a fork.

    Raises SettingsError if the package redis is not installed, or the URL is malformed.
    """

    def __init__(self, url: str) -> None:
        self._client = _client(url)

    def version(self) -> int:
        return int(self._run("version"))

    def keys(self) -> list[StoredKey]:
        return read_keys(self._run("keys"))

    def put(self, key: StoredKey) -> bool:
        return bool(self._run("put", key.entry.name, write_key(key), key.document))

    def usage(self, name: str, day: str) -> Usage:
        *used, full_us = self._run("usage", name, day)
        return Usage._make([*used, full_us / 1e6])

    def begin_worker(self, worker: str) -> None:
        self._run("begin_worker", worker, key_store.oldest_day())

    def keep_alive(self, worker: str) -> None:
        self._run("keep_alive", worker, key_store.LEASE_S)

    def reserve(self, name: str, worker: str, limits: KeyLimits, held: Hold, need: Need, spare: int, day: str) -> None:
        rate, counts = limits.requests_per_s, (limits.concurrency, limits.pages_a_day, limits.pages_a_month)
        steps = (rate and 1 / rate, rate and key_store.burst_s(rate))
        if limit := self._run("reserve", name, worker, day, *held, *need, spare, *counts, *steps):
            raise LimitReached(key_store.LIMIT_NAMES[limit - 1])

    def settle(self, name: str, worker: str, held: Hold, series: int = 0, total: int = 0, day: str = "") -> None:
        self._run("settle", name, worker, day, *held, series, total, key_store.SETTLED_DAYS * _DAY_S)

    def close(self) -> None:
        self._client.close()

    @cached_property
    def _script(self) -> Any:
        return self._client.register_script(Path(__file__).with_suffix(".lua").read_text("utf-8"))

    def _run(self, function: str, *values: object) -> Any:
        """Call a function of the script; returns its result. Raises KeysUnavailable."""
        from redis.exceptions import RedisError

        try:
            return self._script(args=[function, *("" if value is None else value for value in values)])
        except (RedisError, OSError) as error:
            raise KeysUnavailable(
                reason=f"The API keys' Redis cannot be used: {type(error).__name__}: {str(error).rstrip('.')}."
            ) from error


def _client(url: str) -> Any:
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise SettingsError(
            "OCRSVC_KEYS is a Redis address, but the package redis is not installed.", "Install the extra redis."
        ) from error
    try:
        return Redis.from_url(
            url, socket_timeout=TRY_S, socket_connect_timeout=TRY_S, retry=Retry(NoBackoff(), 1), decode_responses=False
        )
    except ValueError:
        # Raised without its cause, because the cause's text may quote part of the password.
        raise SettingsError(
            "OCRSVC_KEYS is not a valid Redis address.",
            "Write redis://HOST:PORT/NUMBER, with reserved characters of the password escaped, such as %23 for #.",
        ) from None
