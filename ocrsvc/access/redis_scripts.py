"""The transactions of the Redis store, in Lua: Redis runs each in one piece. Its own clock counts, not the machines'.

Under `ocrsvc:` there are `keys` (name to document) and `keys:version`; of each key `held:NAME` (what its requests
under way have reserved, by worker and number; with a `+` what other work has), `usage:NAME` (pages by day and month)
and `rate:NAME` (when its bucket is full again); `workers` (when each was last seen alive), and for a minute
`done:NUMBER` of what was settled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1
from typing import Final

PREFIX: Final = "ocrsvc:"
LEASE_S: Final = 5.0
"""What a worker has reserved is given back when it has not shown for so long that it lives."""

_DONE_S: Final = 60

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
"""

_READ: Final = (
    _NOW
    + """
local rate, held, usage = KEYS[1], KEYS[2], KEYS[3]
local requests, reserved = 0, 0
local fields = redis.call('HGETALL', held)
for place = 1, #fields, 2 do
    if string.sub(fields[place], 1, 1) ~= '+' then requests = requests + 1 end
    reserved = reserved + fields[place + 1]
end
local used = redis.call('HMGET', usage, ARGV[1], ARGV[2])
local today, month = tonumber(used[1] or 0), tonumber(used[2] or 0)
local full = tonumber(redis.call('GET', rate) or 0)
"""
)

# Answers 0, or the number of the limit that is reached.
_TAKE: Final = (
    _READ
    + """
local field, pages, day_most, month_most = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
"""
)

_CHECK_PAGES: Final = """
if day_most and today + reserved + pages > day_most then return 3 end
if month_most and month + reserved + pages > month_most then return 4 end
"""

# What these workers have reserved.
_FORGET: Final = f"""
local function forget(workers)
    for _, name in ipairs(redis.call('HKEYS', '{PREFIX}keys')) do
        local held = '{PREFIX}held:' .. name
        for _, field in ipairs(redis.call('HKEYS', held)) do
            if workers[string.match(field, '^%+?(.*)|')] then redis.call('HDEL', held, field) end
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


ADMIT: Final = Script(
    _TAKE
    + """
local concurrency, step, burst = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
if step then
    full = math.max(now, math.min(now + burst, full)) + step
    if full > now + burst + 0.000001 then return 1 end
end
if concurrency and requests >= concurrency then return 2 end
"""
    + _CHECK_PAGES
    + """
if step then redis.call('SET', rate, string.format('%.6f', full), 'PX', math.ceil((full - now) * 1000)) end
redis.call('HSET', held, field, pages)
return 0
"""
)

RESERVE: Final = Script(
    _TAKE
    + _CHECK_PAGES
    + """
if redis.call('HEXISTS', held, field) == 0 then field = '+' .. field end
redis.call('HINCRBY', held, field, pages)
return 0
"""
)

SETTLE: Final = Script(f"""
local held, usage, done = KEYS[1], KEYS[2], KEYS[3]
local field, pages, day, month, oldest = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
if not redis.call('SET', done, 1, 'NX', 'EX', {_DONE_S}) then return 0 end
redis.call('HDEL', held, field, '+' .. field)
if pages == 0 then return 0 end
redis.call('HINCRBY', usage, month, pages)
if redis.call('HINCRBY', usage, day, pages) == pages then
    for _, period in ipairs(redis.call('HKEYS', usage)) do
        if period < oldest then redis.call('HDEL', usage, period) end
    end
end
return pages
""")

# Microseconds until the bucket is full again, last.
USAGE: Final = Script(
    _READ
    + """
return {requests, reserved, today, month, math.max(0, math.ceil((full - now) * 1000000))}
"""
)

PUT: Final = Script(f"""
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
