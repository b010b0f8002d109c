"""The transactions of the Redis store, in Lua: Redis runs each in one piece. Its own clock counts, not the machines'.

Under `ocrsvc:` there are `keys` (name to document) and `keys:version`; of each key `held:NAME` (what each worker has
reserved of it: requests and pages), `usage:NAME` (pages by day and month) and `rate:NAME` (when its bucket is full
again); `workers` (when each was last seen alive), and for two days `settled:WORKER:NAME` (the last number of a
settlement).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1
from typing import Final

PREFIX: Final = "ocrsvc:"
LEASE_S: Final = 5.0
"""What a worker has reserved is given back when it has not shown for so long that it lives."""

# How long the last number of a worker is known; what it counted is settled within seconds.
_SETTLED_S: Final = 172_800

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
"""

_READ: Final = (
    _NOW
    + """
local rate, held, usage, worker = KEYS[1], KEYS[2], KEYS[3], ARGV[3]
local requests, reserved = 0, 0
local fields = redis.call('HGETALL', held)
for place = 1, #fields, 2 do
    if fields[place] ~= worker then
        local space = string.find(fields[place + 1], ' ', 1, true)
        requests = requests + string.sub(fields[place + 1], 1, space - 1)
        reserved = reserved + string.sub(fields[place + 1], space + 1)
    end
end
local used = redis.call('HMGET', usage, ARGV[1], ARGV[2])
local today, month = tonumber(used[1] or 0), tonumber(used[2] or 0)
local full = tonumber(redis.call('GET', rate) or 0)
"""
)

_HOLD: Final = """
local function hold(held, worker, requests, pages)
    if requests + pages > 0 then
        redis.call('HSET', held, worker, string.format('%d %d', requests, pages))
    else
        redis.call('HDEL', held, worker)
    end
end
"""

# What these workers have reserved.
_FORGET: Final = f"""
local function forget(workers)
    for _, name in ipairs(redis.call('HKEYS', '{PREFIX}keys')) do
        local held = '{PREFIX}held:' .. name
        for _, field in ipairs(redis.call('HKEYS', held)) do
            if workers[field] then redis.call('HDEL', held, field) end
        end
    end
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """One script, and the name under which Redis knows it once it has run."""

    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", sha1(self.source.encode(), usedforsecurity=False).hexdigest())


# Answers 0, or the number of the limit that is reached.
RESERVE: Final = Script(
    _READ
    + _HOLD
    + """
local held_requests, held_pages, spare = ARGV[4], ARGV[5], ARGV[9]
local more_requests, tokens, pages = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local concurrency, day_most, month_most = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
if tokens > 0 then
    local step, burst = ARGV[13], ARGV[14]
    full = math.max(now, math.min(now + burst, full))
    if full + spare * tokens * step > now + burst + 0.000001 then return 1 end
    full = full + tokens * step
end
if concurrency and more_requests > 0 and requests + held_requests + spare * more_requests > concurrency then
    return 2
end
local wanted = reserved + held_pages + spare * pages
if day_most and pages > 0 and today + wanted > day_most then return 3 end
if month_most and pages > 0 and month + wanted > month_most then return 4 end
if tokens > 0 then
    redis.call('SET', rate, string.format('%.6f', full), 'PX', math.ceil((full - now) * 1000))
end
hold(held, worker, held_requests + more_requests, held_pages + pages)
return 0
"""
)

SETTLE: Final = Script(
    _HOLD
    + f"""
local held, usage, settled = KEYS[1], KEYS[2], KEYS[3]
local worker, number, pages = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5])
local day, month, oldest = ARGV[6], ARGV[7], ARGV[8]
hold(held, worker, ARGV[2], ARGV[3])
if pages == 0 or number <= tonumber(redis.call('GET', settled) or 0) then return 0 end
redis.call('SET', settled, number, 'EX', {_SETTLED_S})
redis.call('HINCRBY', usage, month, pages)
if redis.call('HINCRBY', usage, day, pages) == pages then
    for _, period in ipairs(redis.call('HKEYS', usage)) do
        if period < oldest then redis.call('HDEL', usage, period) end
    end
end
return pages
"""
)

# Microseconds until the bucket is full again, last.
USAGE: Final = Script(
    _READ
    + """
return {requests, reserved, today, month, math.max(0, math.ceil((full - now) * 1000000))}
"""
)

# Answers 0 when another has changed the key. What is there already was put here by a try whose answer was lost.
PUT: Final = Script(f"""
local known = redis.call('HGET', '{PREFIX}keys', ARGV[1]) or ''
if known == ARGV[2] then return 1 end
if known ~= ARGV[3] then return 0 end
redis.call('HSET', '{PREFIX}keys', ARGV[1], ARGV[2])
return redis.call('INCR', '{PREFIX}keys:version')
""")

BEGIN: Final = Script(
    _FORGET
    + """
forget({[ARGV[1]] = true})
return 0
"""
)

KEEP_ALIVE: Final = Script(
    _NOW
    + _FORGET
    + f"""
local seen = '{PREFIX}workers'
redis.call('ZADD', seen, now, ARGV[1])
local dead = redis.call('ZRANGEBYSCORE', seen, '-inf', now - {LEASE_S})
if #dead > 0 then
    local workers = {{}}
    for _, worker in ipairs(dead) do workers[worker] = true end
    forget(workers)
    redis.call('ZREM', seen, unpack(dead))
end
return #dead
"""
)
