"""Keys and their usage in Redis or Valkey, for the workers of many machines.

Each call is one script and one round trip. A script may be sent again when its answer was lost: a request is known by
its number, under which pages are reserved once and counted once.

It talks through the connections of the package redis, and not through its client, which takes 70 us of CPU for a call
where a connection takes 17 us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ocrsvc.access.key_documents import read_keys, write_key
from ocrsvc.access.quotas import burst_s
from ocrsvc.access.records import Hold, KeyLimits, Need, StoredKey, Usage
from ocrsvc.access.redis_scripts import BEGIN, KEEP_ALIVE, PREFIX, PUT, RESERVE, SETTLE, USAGE, Script
from ocrsvc.access.store import LimitName, LimitReached, Period, oldest_period
from ocrsvc.errors import KeysUnavailable, SettingsError

TRY_S: Final = 0.5
"""How long one try waits for Redis; there are two."""

_TRIES: Final = 2
_LIMITS: Final[tuple[LimitName, ...]] = ("rate", "concurrency", "day", "month")


class RedisStore:
    """See `ocrsvc.access.store.KeyStore`. Connects when it is first used: make it before a fork, use it after.

    Args:
        url: redis://, rediss:// or unix://.

    Raises:
        SettingsError: The package redis is not installed, or the URL is none.
    """

    def __init__(self, url: str) -> None:
        self._connect = _connector(url)
        # Connections of the package redis, most of whose methods have no types. The last given back is taken first.
        self._idle: deque[Any] = deque()
        self._oldest = oldest_period()

    def version(self) -> int:
        """See KeyStore."""
        return int(self._call("GET", f"{PREFIX}keys:version") or 0)

    def keys(self) -> list[StoredKey]:
        """See KeyStore."""
        documents = self._call("HVALS", f"{PREFIX}keys")
        return sorted(read_keys(documents), key=lambda key: key.entry.name)

    def put(self, key: StoredKey) -> bool:
        """See KeyStore."""
        return bool(self._run(PUT, (), key.entry.name, write_key(key), key.document or ""))

    def usage(self, name: str, period: Period) -> Usage:
        """See KeyStore."""
        requests, reserved, today, this_month, full_us = self._run(USAGE, _keys_of(name), period.day, period.month, "")
        return Usage(requests, reserved, today, this_month, full_us / 1e6)

    def begin_worker(self, worker: str) -> None:
        """See KeyStore."""
        self._run(BEGIN, (), worker)

    def keep_alive(self, worker: str) -> None:
        """See KeyStore."""
        self._run(KEEP_ALIVE, (), worker)
        self._oldest = oldest_period()

    def reserve(
        self, name: str, worker: str, limits: KeyLimits, held: Hold, need: Need, spare: int, period: Period
    ) -> None:
        """See KeyStore."""
        rate = limits.requests_per_s
        step, burst = ("", "") if rate is None else (1 / rate, burst_s(rate))
        most = (_text(limits.concurrency), _text(limits.pages_a_day), _text(limits.pages_a_month))
        values = (period.day, period.month, worker, *held, *need, spare, *most, step, burst)
        if limit := self._run(RESERVE, _keys_of(name), *values):
            raise LimitReached(_LIMITS[limit - 1])

    def hold(self, name: str, worker: str, held: Hold) -> None:
        """See KeyStore."""
        self.settle(name, worker, held, 0, 0, Period("", ""))

    def settle(self, name: str, worker: str, held: Hold, number: int, pages: int, period: Period) -> None:
        """See KeyStore."""
        keys = (f"{PREFIX}held:{name}", f"{PREFIX}usage:{name}", f"{PREFIX}settled:{worker}:{name}")
        self._run(SETTLE, keys, worker, *held, number, pages, period.day, period.month, self._oldest)

    def close(self) -> None:
        """See KeyStore."""
        while self._idle:
            self._idle.pop().disconnect()

    def _run(self, script: Script, keys: tuple[str, ...], *values: object) -> Any:
        """What a script answers. Raises KeysUnavailable."""
        from redis.exceptions import NoScriptError

        try:
            return self._call("EVALSHA", script.sha, len(keys), *keys, *values)
        except NoScriptError:
            # Redis was started anew.
            return self._call("EVAL", script.source, len(keys), *keys, *values)

    def _call(self, *command: Any) -> Any:
        """What a command answers, which may be sent twice. Raises KeysUnavailable, NoScriptError."""
        from redis.exceptions import NoScriptError, RedisError, ResponseError

        for tries_left in reversed(range(_TRIES)):
            try:
                return self._call_once(command)
            except NoScriptError:
                raise
            except (RedisError, OSError) as error:
                # Those that wait were opened to a Redis that may be gone, too.
                self.close()
                if not tries_left or isinstance(error, ResponseError):
                    raise _unavailable(error) from error
        raise AssertionError("the last try returns or raises")

    def _call_once(self, command: tuple[Any, ...]) -> Any:
        from redis.exceptions import ResponseError

        connection = self._take_connection()
        try:
            connection.send_packed_command([_packed(command)], check_health=False)
            answer = connection.read_response()
        except ResponseError:
            # An answer all the same.
            self._idle.append(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._idle.append(connection)
        return answer

    def _take_connection(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()


def check_url(url: str) -> None:
    """Raises SettingsError when there can be no store at this URL; does not connect."""
    _connector(url)


def _connector(url: str) -> Callable[[], Any]:
    try:
        from redis.backoff import NoBackoff
        from redis.connection import Connection, parse_url
        from redis.retry import Retry
    except ImportError as error:
        raise SettingsError(
            "OCRSVC_KEYS names a Redis, and the package redis is not installed.", "Install ocrsvc[redis]."
        ) from error
    try:
        options: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]  # redis has no type for it
    except ValueError:
        # Its text quotes what it takes for the port, which may be a part of the password.
        raise SettingsError(
            "OCRSVC_KEYS is no address of a Redis.",
            "Write redis://HOST:PORT/NUMBER, and signs in a password that addresses give a meaning as %23 for #.",
        ) from None
    kind = options.pop("connection_class", Connection)
    limits = {"socket_timeout": TRY_S, "socket_connect_timeout": TRY_S, "retry": Retry(NoBackoff(), 0)}
    return partial(kind, **options | limits)


def _packed(command: tuple[Any, ...]) -> bytes:
    """A command on the wire. The package's own way to pack it takes as long as all the rest of a call."""
    words = [str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _keys_of(name: str) -> tuple[str, ...]:
    return f"{PREFIX}rate:{name}", f"{PREFIX}held:{name}", f"{PREFIX}usage:{name}"


def _text(limit: int | None) -> int | str:
    """A limit for a script, which takes no None."""
    return "" if limit is None else limit


def _unavailable(error: Exception) -> KeysUnavailable:
    return KeysUnavailable(
        reason=f"The Redis of the API keys cannot be used: {type(error).__name__}: {str(error).rstrip('.')}."
    )
