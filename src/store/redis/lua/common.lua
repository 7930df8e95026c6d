-- Common to the scripts that write. Scripts hold no rules: they compare, and write what they are told.
-- Each one checks first and writes last, because what a script wrote before it broke off stays. All keys
-- that it writes are declared, so that a slot on the move is refused before anything runs.
--
-- KEYS: 1 the key's holder, 2 the call, 3 epoch, 4 everyone's writes, 5 census, 6 running, 7 unknown, 8 failed,
--       9 to 13 session, line, its live waiters, budget, what looks alike; or again the call
--       14 finished calls by when they may be deleted, 15 stream, 16 tenants,
--       17 to 19 the tenant's lists of running, unknown and failed calls,
--       20 and more: the other lists in which the call stands,
--       and last the holders of its further names
-- ARGV: 1 prefix, 2 gateway, 3 epoch, 4 known writes

local INDEXES = { running = KEYS[6], unknown = KEYS[7], failed = KEYS[8] }
local LISTS = { running = KEYS[17], unknown = KEYS[18], failed = KEYS[19] }
-- About how many entries a stream has.
local FOLLOWED = 1000

-- Where the further names begin: they are the last keys, and no list is named like one.
local further = #KEYS + 1
while further > 20 and string.find(KEYS[further - 1], ':key:', 1, true) do further = further - 1 end

-- Calls `act` with the key of each of the call's names, until it answers with something.
local function each_name(act)
  local answer = act(KEYS[1])
  for n = further, #KEYS do
    if answer then break end
    answer = act(KEYS[n])
  end
  return answer
end

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

-- Puts a call into the index and the list of its state, and out of every other; the census follows.
local function move(call_id, tool, state, score, position)
  for name, index in pairs(INDEXES) do
    local was = redis.call('ZREM', index, call_id)
    local is = 0
    if name == state then is = redis.call('ZADD', index, score, call_id) end
    if name ~= 'failed' and is ~= was then
      redis.call('HINCRBY', KEYS[5], name .. ':' .. tool, is - was)
    end
  end
  for name, list in pairs(LISTS) do
    if name == state then
      redis.call('ZADD', list, 0, position)
    else
      redis.call('ZREM', list, position)
    end
  end
end

-- Puts a call into the lists of all that it can be found by.
local function enlist(position, tenant)
  redis.call('SADD', KEYS[16], tenant)
  for n = 20, further - 1 do redis.call('ZADD', KEYS[n], 0, position) end
end

-- Appends what happened to a call to the stream of changes.
local function tell(call_id, tool, state, entry)
  redis.call('XADD', KEYS[15], 'MAXLEN', '~', FOLLOWED, '*', 'call_id', call_id, 'tool', tool, 'state', state,
    'entry', entry)
end

-- From when on a finished call may be deleted, or '' for never. No call has a time to live of its own: its
-- deletion takes it out of its lists in the same step.
local function retain(call_id, until_when)
  if until_when == '' then
    redis.call('ZREM', KEYS[14], call_id)
  else
    redis.call('ZADD', KEYS[14], until_when, call_id)
  end
end
