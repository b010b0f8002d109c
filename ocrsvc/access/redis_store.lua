-- The API key store in Redis. ARGV is a function's name and its arguments; None is passed as an empty one.
--
-- Names: keys (document by name), keys:version, workers (when each was seen); per key rate:NAME (when its bucket is
-- full again), held:NAME (reserved by each worker), usage:NAME (pages by day and month); settled:SERIES (pages counted
-- of a series, see page_counts.py).

local call, prefix, run = redis.call, 'ocrsvc:', {}
local time = call('TIME')
local now = time[1] + time[2] / 1000000

-- Set a worker's reservation of a key, as "requests pages".
local function hold(name, worker, requests, pages)
    if requests + pages > 0 then
        call('HSET', prefix .. 'held:' .. name, worker, string.format('%d %d', requests, pages))
    else
        call('HDEL', prefix .. 'held:' .. name, worker)
    end
end

-- The reservations of all workers but one, the counted pages, and when the bucket is full.
local function read(name, day, besides)
    local requests, pages = 0, 0
    local fields = call('HGETALL', prefix .. 'held:' .. name)
    for place = 1, #fields, 2 do
        if fields[place] ~= besides then
            local r, p = string.match(fields[place + 1], '(%d+) (%d+)')
            requests, pages = requests + r, pages + p
        end
    end
    local used = call('HMGET', prefix .. 'usage:' .. name, day, string.sub(day, 1, 7))
    local full = tonumber(call('GET', prefix .. 'rate:' .. name) or 0)
    return requests, pages, tonumber(used[1] or 0), tonumber(used[2] or 0), full
end

-- Release the reservations of these workers.
local function forget(workers)
    for _, name in ipairs(call('HKEYS', prefix .. 'keys')) do
        for _, worker in ipairs(workers) do call('HDEL', prefix .. 'held:' .. name, worker) end
    end
    return #workers
end

function run.version()
    return tonumber(call('GET', prefix .. 'keys:version') or 0)
end

function run.keys()
    return call('HVALS', prefix .. 'keys')
end

-- Returns 0 if the key was changed meanwhile. An equal document is from an earlier try whose response was lost.
function run.put(name, document, before)
    local known = call('HGET', prefix .. 'keys', name) or ''
    if known == document then return 1 end
    if known ~= before then return 0 end
    call('HSET', prefix .. 'keys', name, document)
    return call('INCR', prefix .. 'keys:version')
end

-- The last value is microseconds until the bucket is full again.
function run.usage(name, day)
    local requests, pages, today, this_month, full = read(name, day, '')
    return {requests, pages, today, this_month, math.max(0, math.ceil((full - now) * 1000000))}
end

-- Returns 0, or the number of the limit that is reached, with nothing changed.
function run.reserve(name, worker, day, held_requests, held_pages, more_requests, tokens, more_pages, spare,
                     concurrency, day_most, month_most, step, burst)
    local requests, pages, today, this_month, full = read(name, day, worker)
    requests, pages = requests + held_requests + spare * more_requests, pages + held_pages + spare * more_pages
    local has_rate, has_pages = tonumber(tokens) > 0, tonumber(more_pages) > 0
    if has_rate then
        full = math.max(now, math.min(now + burst, full))
        if full + spare * tokens * step > now + burst + 0.000001 then return 1 end
    end
    if tonumber(more_requests) > 0 and requests > (tonumber(concurrency) or math.huge) then return 2 end
    if has_pages and today + pages > (tonumber(day_most) or math.huge) then return 3 end
    if has_pages and this_month + pages > (tonumber(month_most) or math.huge) then return 4 end
    if has_rate then
        full = full + tokens * step
        call('SET', prefix .. 'rate:' .. name, string.format('%.6f', full), 'PX', math.ceil((full - now) * 1000))
    end
    hold(name, worker, held_requests + more_requests, held_pages + more_pages)
    return 0
end

-- Set a worker's reservation, and count the series' growth since its last settlement.
function run.settle(name, worker, day, requests, held_pages, series, total, kept_s)
    hold(name, worker, requests, held_pages)
    local settled, usage = prefix .. 'settled:' .. series, prefix .. 'usage:' .. name
    local more = total - (call('GET', settled) or 0)
    if more > 0 then
        call('SET', settled, total, 'EX', kept_s)
        for _, period in ipairs({day, string.sub(day, 1, 7)}) do call('HINCRBY', usage, period, more) end
    end
    return more
end

function run.begin_worker(worker, oldest)
    for _, name in ipairs(call('HKEYS', prefix .. 'keys')) do
        for _, period in ipairs(call('HKEYS', prefix .. 'usage:' .. name)) do
            if period < oldest then call('HDEL', prefix .. 'usage:' .. name, period) end
        end
    end
    return forget({worker})
end

function run.keep_alive(worker, lease_s)
    call('ZADD', prefix .. 'workers', now, worker)
    local dead = call('ZRANGEBYSCORE', prefix .. 'workers', '-inf', now - lease_s)
    if #dead > 0 then call('ZREM', prefix .. 'workers', unpack(dead)) end
    return forget(dead)
end

return run[ARGV[1]](unpack(ARGV, 2))
