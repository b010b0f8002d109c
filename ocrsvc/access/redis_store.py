"""API keys and their usage in Redis or Valkey, for the workers of many machines.

Each call is one run of one Lua script, which Redis executes in one piece, by Redis's own clock. A call may be sent
again when its answer was lost: reservations are set, not added, and a settlement carries its series' total.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from ocrsvc.access.api_keys import KeyLimits, StoredKey, read_keys, write_key
from ocrsvc.access.key_store import (
    LEASE_S,
    LIMIT_NAMES,
    SETTLED_DAYS,
    Hold,
    LimitReached,
    Need,
    Period,
    Usage,
    burst_s,
    oldest_period,
)
from ocrsvc.errors import KeysUnavailable, SettingsError

TRY_S: Final = 0.5
"""How long one try waits for Redis; there are two."""

PREFIX: Final = "ocrsvc:"
"""Of all names: `keys` (name to document), `keys:version`, `workers` (when each was seen); per key `rate:NAME` (when
its bucket is full again), `held:NAME` (reserved by each worker), `usage:NAME` (pages by day and month), and
`settled:SERIES` (pages counted of a series, see page_counts.py)."""

_SCRIPT: Final = f"""
local call, prefix = redis.call, '{PREFIX}'
local time = call('TIME')
local now = time[1] + time[2] / 1000000

-- Set what a worker has reserved.
local function hold(held, worker, requests, pages)
    if requests + pages > 0 then
        call('HSET', held, worker, string.format('%d %d', requests, pages))
    else
        call('HDEL', held, worker)
    end
end

-- What all workers but one have reserved, what was counted, and when the bucket is full.
local function read(name, day, month, besides)
    local requests, pages = 0, 0
    local fields = call('HGETALL', prefix .. 'held:' .. name)
    for place = 1, #fields, 2 do
        if fields[place] ~= besides then
            local r, p = string.match(fields[place + 1], '(%d+) (%d+)')
            requests, pages = requests + r, pages + p
        end
    end
    local used = call('HMGET', prefix .. 'usage:' .. name, day, month)
    local full = tonumber(call('GET', prefix .. 'rate:' .. name) or 0)
    return requests, pages, tonumber(used[1] or 0), tonumber(used[2] or 0), full
end

-- Give back what these workers have reserved.
local function forget(workers)
    for _, name in ipairs(call('HKEYS', prefix .. 'keys')) do
        for _, worker in ipairs(workers) do call('HDEL', prefix .. 'held:' .. name, worker) end
    end
end

local run = {{}}

-- 0 when another has changed the key. The same document was put by a try whose answer was lost.
function run.put(name, document, before)
    local known = call('HGET', prefix .. 'keys', name) or ''
    if known == document then return 1 end
    if known ~= before then return 0 end
    call('HSET', prefix .. 'keys', name, document)
    return call('INCR', prefix .. 'keys:version')
end

-- Microseconds until the bucket is full again, last.
function run.usage(name, day, month)
    local requests, pages, today, this_month, full = read(name, day, month, '')
    return {{requests, pages, today, this_month, math.max(0, math.ceil((full - now) * 1000000))}}
end

-- 0, or the number of the limit that is reached. Every limit is checked first: a refused request changes nothing.
function run.reserve(name, worker, held_requests, held_pages, more_requests, tokens, more_pages, spare,
                     concurrency, day, day_most, month, month_most, step, burst)
    local requests, pages, today, this_month, full = read(name, day, month, worker)
    spare, tokens, more_requests, more_pages =
        tonumber(spare), tonumber(tokens), tonumber(more_requests), tonumber(more_pages)
    concurrency, day_most, month_most = tonumber(concurrency), tonumber(day_most), tonumber(month_most)
    if tokens > 0 then
        full = math.max(now, math.min(now + burst, full))
        if full + spare * tokens * step > now + burst + 0.000001 then return 1 end
        full = full + tokens * step
    end
    if concurrency and more_requests > 0 and requests + held_requests + spare * more_requests > concurrency then
        return 2
    end
    local wanted = pages + held_pages + spare * more_pages
    if day_most and more_pages > 0 and today + wanted > day_most then return 3 end
    if month_most and more_pages > 0 and this_month + wanted > month_most then return 4 end
    if tokens > 0 then
        call('SET', prefix .. 'rate:' .. name, string.format('%.6f', full), 'PX', math.ceil((full - now) * 1000))
    end
    hold(prefix .. 'held:' .. name, worker, held_requests + more_requests, held_pages + more_pages)
    return 0
end

-- Set what a worker holds, and count what the series has grown by since it was settled last.
function run.settle(name, worker, requests, held_pages, series, total, day, month, oldest)
    hold(prefix .. 'held:' .. name, worker, requests, held_pages)
    local settled, usage = prefix .. 'settled:' .. series, prefix .. 'usage:' .. name
    local more = total - tonumber(call('GET', settled) or 0)
    if more <= 0 then return 0 end
    call('SET', settled, total, 'EX', {SETTLED_DAYS * 86_400})
    call('HINCRBY', usage, month, more)
    if call('HINCRBY', usage, day, more) == more then
        for _, period in ipairs(call('HKEYS', usage)) do
            if period < oldest then call('HDEL', usage, period) end
        end
    end
    return more
end

function run.begin_worker(worker)
    forget({{worker}})
    return 0
end

function run.keep_alive(worker)
    local seen = prefix .. 'workers'
    call('ZADD', seen, now, worker)
    local dead = call('ZRANGEBYSCORE', seen, '-inf', now - {LEASE_S})
    if #dead > 0 then
        forget(dead)
        call('ZREM', seen, unpack(dead))
    end
    return #dead
end

return run[ARGV[1]](unpack(ARGV, 2))
"""


class RedisStore:
    """See `ocrsvc.access.key_store.KeyStore`. Connects at the first call: make it before a fork, use it after.

    Args:
        url: redis://, rediss:// or unix://.

    Raises:
        SettingsError: The package redis is not installed, or the URL is malformed.
    """

    def __init__(self, url: str) -> None:
        self._client = _client(url)
        self._oldest = oldest_period()

    def version(self) -> int:
        """See KeyStore."""
        return int(_answer(lambda: self._client.get(f"{PREFIX}keys:version")) or 0)

    def keys(self) -> list[StoredKey]:
        """See KeyStore."""
        documents = _answer(lambda: self._client.hvals(f"{PREFIX}keys"))
        return sorted(read_keys(documents), key=lambda key: key.entry.name)

    def put(self, key: StoredKey) -> bool:
        """See KeyStore."""
        return bool(self._run("put", key.entry.name, write_key(key), key.document or ""))

    def usage(self, name: str, period: Period) -> Usage:
        """See KeyStore."""
        requests, reserved, today, this_month, full_us = self._run("usage", name, period.day, period.month)
        return Usage(requests, reserved, today, this_month, full_us / 1e6)

    def begin_worker(self, worker: str) -> None:
        """See KeyStore."""
        self._run("begin_worker", worker)

    def keep_alive(self, worker: str) -> None:
        """See KeyStore."""
        self._run("keep_alive", worker)
        self._oldest = oldest_period()

    def reserve(
        self, name: str, worker: str, limits: KeyLimits, held: Hold, need: Need, spare: int, period: Period
    ) -> None:
        """See KeyStore."""
        rate = limits.requests_per_s
        most = (limits.concurrency, period.day, limits.pages_a_day, period.month, limits.pages_a_month)
        steps = (rate and 1 / rate, rate and burst_s(rate))
        if limit := self._run("reserve", name, worker, *held, *need, spare, *most, *steps):
            raise LimitReached(LIMIT_NAMES[limit - 1])

    def hold(self, name: str, worker: str, held: Hold) -> None:
        """See KeyStore."""
        self.settle(name, worker, held, 0, 0, Period("", ""))

    def settle(self, name: str, worker: str, held: Hold, series: int, total: int, period: Period) -> None:
        """See KeyStore."""
        self._run("settle", name, worker, *held, series, total, period.day, period.month, self._oldest)

    def close(self) -> None:
        """See KeyStore."""
        self._client.close()

    @cached_property
    def _script(self) -> Any:
        return self._client.register_script(_SCRIPT)

    def _run(self, function: str, *values: object) -> Any:
        """What a function of the script answers; None is passed as an empty text. Raises KeysUnavailable."""
        words = ["" if value is None else value for value in values]
        return _answer(lambda: self._script(args=[function, *words]))


def check_url(url: str) -> None:
    """Raises SettingsError when there can be no store at this URL; does not connect."""
    _client(url).close()


def _client(url: str) -> Any:
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise SettingsError(
            "OCRSVC_KEYS names a Redis, and the package redis is not installed.", "Install ocrsvc[redis]."
        ) from error
    try:
        return Redis.from_url(
            url, socket_timeout=TRY_S, socket_connect_timeout=TRY_S, retry=Retry(NoBackoff(), 1), decode_responses=False
        )
    except ValueError:
        # Its text quotes what it takes for the port, which may be a part of the password.
        raise SettingsError(
            "OCRSVC_KEYS is no address of a Redis.",
            "Write redis://HOST:PORT/NUMBER, with reserved characters of a password escaped, as %23 for #.",
        ) from None


def _answer(call: Callable[[], Any]) -> Any:
    from redis.exceptions import RedisError

    try:
        return call()
    except (RedisError, OSError) as error:
        raise KeysUnavailable(
            reason=f"The Redis of the API keys cannot be used: {type(error).__name__}: {str(error).rstrip('.')}."
        ) from error
