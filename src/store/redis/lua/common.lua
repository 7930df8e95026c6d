-- Common to the scripts that write. Scripts hold no rules: they compare, and write what they are told.
-- Each one checks first and writes last, because what a script wrote before it broke off stays.

local INDEXES = { 'running', 'unknown', 'failed' }

-- The fields of a call, as the gateway reads them.
local function fields(call)
  return redis.call('HMGET', call, 'intent', 'args', 'progress', 'fencing', 'result')
end

-- Why nothing that leads to an effect may be written: this is not the data that the gateway knows.
-- A gateway that knows of more writes than there are has lost some.
local function missing(prefix, gateway, epoch, known)
  if redis.call('GET', prefix .. 'epoch') ~= epoch then return 'epoch' end
  local writes = tonumber(redis.call('HGET', prefix .. 'writes', gateway) or '0')
  if writes < tonumber(known) then return 'writes' end
  return nil
end

-- Counts a write of this gateway, unless it knows of more than there are: that must not heal itself.
local function count(prefix, gateway, known)
  local writes = tonumber(redis.call('HGET', prefix .. 'writes', gateway) or '0')
  if writes < tonumber(known) then return writes end
  return redis.call('HINCRBY', prefix .. 'writes', gateway, 1)
end

-- The session's next token: max(previous + 1, this server's clock in microseconds, floor). It rises
-- even if the key, or the clock, was set back. Sessions that rest for a week are forgotten.
local function draw(key, floor)
  local now = redis.call('TIME')
  local token = math.max(
    (tonumber(redis.call('GET', key)) or 0) + 1,
    tonumber(now[1]) * 1000000 + tonumber(now[2]),
    tonumber(floor)
  )
  token = string.format('%.0f', token)
  redis.call('SET', key, token, 'EX', 604800)
  return token
end

-- Puts a call into the index of its state, and out of every other; the census follows.
local function move(prefix, call_id, tool, state, score)
  for _, name in ipairs(INDEXES) do
    if redis.call('ZREM', prefix .. name, call_id) == 1 then
      redis.call('HINCRBY', prefix .. 'census', name .. ':' .. tool, -1)
    end
    if name == state then
      redis.call('ZADD', prefix .. name, score, call_id)
      redis.call('HINCRBY', prefix .. 'census', name .. ':' .. tool, 1)
    end
  end
end

-- Nothing unfinished has a time to live; what is finished goes when its retention is over.
local function retain(key, ttl)
  if ttl == '' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, ttl) end
end
