-- Common to the scripts that write. Scripts hold no rules: they compare, and write what they are told.
-- Each one checks first and writes last, because what a script wrote before it broke off stays. All keys
-- that it writes are declared, so that a slot on the move is refused before anything runs.
--
-- KEYS: 1 the key's holder, 2 the call, 3 epoch, 4 everyone's writes, 5 census, 6 running, 7 unknown, 8 failed,
--       9 to 13 session, line, who is alive in it, budget, what looks alike; or again the call
-- ARGV: 1 prefix, 2 gateway, 3 epoch, 4 known writes

local INDEXES = { running = KEYS[6], unknown = KEYS[7], failed = KEYS[8] }

-- The fields of a call, as the gateway reads them.
local function fields(call)
  return redis.call('HMGET', call, 'intent', 'args', 'progress', 'fencing', 'result', 'similar_to')
end

local function written()
  return tonumber(redis.call('HGET', KEYS[4], ARGV[2]) or '0')
end

-- Why nothing that leads to an effect may be written: this is not the data that the gateway knows.
-- A gateway that knows of more writes than there are has lost some.
local function missing()
  if redis.call('GET', KEYS[3]) ~= ARGV[3] then return 'epoch' end
  if written() < tonumber(ARGV[4]) then return 'writes' end
  return nil
end

-- Counts a write of this gateway, unless it knows of more than there are: that must not heal itself.
local function count()
  local writes = written()
  if writes < tonumber(ARGV[4]) then return writes end
  return redis.call('HINCRBY', KEYS[4], ARGV[2], 1)
end

-- Puts a call into the index of its state, and out of every other; the census follows.
local function move(call_id, tool, state, score)
  for name, index in pairs(INDEXES) do
    local was = redis.call('ZREM', index, call_id)
    local is = 0
    if name == state then is = redis.call('ZADD', index, score, call_id) end
    if name ~= 'failed' and is ~= was then
      redis.call('HINCRBY', KEYS[5], name .. ':' .. tool, is - was)
    end
  end
end

-- Nothing unfinished has a time to live; what is finished goes when its retention is over.
local function retain(key, ttl)
  if ttl == '' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, ttl) end
end
