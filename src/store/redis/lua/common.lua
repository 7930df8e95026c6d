-- Common to the scripts about calls. Scripts hold no rules: they compare, and write what they are told.
-- Each one checks first and writes last, because what a script wrote before it broke off stays. All keys
-- that it writes are declared, so that a slot on the move is refused before anything runs.
--
-- A *giver* is a call past its window whose names this call takes. `cas` is what compare-and-swap compares: version and
-- attempt.
--
-- KEYS: 1 the holder of the call's key, 2 the call, 3 marks, 4 the earliest time at which a call may be deleted,
--       5 census, 6 running, 7 unknown, 8 failed,
--       9 to 13 session, line, its live waiters, budget, similar calls; without conditions: the call, five times,
--       14 finished calls by when they may be deleted, 15 stream, 16 tenants, 17 the tenant's tools,
--       18 and 19 the tenant's lists of unknown and failed calls,
--       20 and more: the other lists of the call; for each giver the list of calls with its key; the holders of the
--       call's further names
-- ARGV: 1 prefix, 2 gateway, 3 epoch, 4 known writes, 5 number of lists, 6 number of givers,
--       7 call id, 8 position, 9 tool; at the end: for each giver its id, cas and position

local INDEXES = { r = KEYS[6], u = KEYS[7], f = KEYS[8] }
local LISTS = { u = KEYS[18], f = KEYS[19] }
local COUNTED = { r = 'running:', u = 'unknown:' }
-- About how many entries a stream keeps.
local FOLLOWED = 1000
-- The first key of the givers' lists, and the first key of the further names.
local givers = 20 + (tonumber(ARGV[5]) or 0)
local further = givers + (tonumber(ARGV[6]) or 0)

-- A call is one string: the lengths of its parts, the letter of its state, whether it is in the index of deletable calls,
-- its cas, and the parts. record.rs reads the same form.
local FORM = '>I1I1I4I4I4I4I4c1c1c24'
local PARTS = { 'token', 'other', 'progress', 'intent', 'entries', 'args', 'result' }

local function unpack_call(text)
  if not text then return nil end
  local call, lengths, at = {}, {}, 0
  lengths[1], lengths[2], lengths[3], lengths[4], lengths[5], lengths[6], lengths[7], call.state, call.kept, call.cas, at =
    struct.unpack(FORM, text)
  for n, part in ipairs(PARTS) do
    call[part] = string.sub(text, at, at + lengths[n] - 1)
    at = at + lengths[n]
  end
  return call
end

local function pack_call(call)
  return struct.pack(FORM, #call.token, #call.other, #call.progress, #call.intent, #call.entries, #call.args, #call.result,
    call.state, call.kept, call.cas) .. call.token .. call.other .. call.progress .. call.intent .. call.entries
    .. call.args .. call.result
end

-- The cas of a call, without reading the rest of it.
local function cas_of(call)
  local head = redis.call('GETRANGE', call, 0, 47)
  return #head == 48 and string.sub(head, 25, 48) or nil
end

-- The givers, by their ids.
local function gives_up()
  local calls, first = {}, #ARGV - 3 * (further - givers)
  for n = 0, further - givers - 1 do
    calls[ARGV[first + 3 * n + 1]] = { cas = ARGV[first + 3 * n + 2], position = ARGV[first + 3 * n + 3], list = KEYS[givers + n] }
  end
  return calls
end

-- The keys of all names of the call; and the ids of the calls that hold them, `false` for a free name.
local function names()
  local keys = { KEYS[1] }
  for n = further, #KEYS do keys[#keys + 1] = KEYS[n] end
  return keys, redis.call('MGET', unpack(keys))
end

-- Gives these names to the call. Puts the givers into the list of their key, by which they are found from then on.
local function take(keys, givers_of)
  if #keys == 0 then return end
  local pairs_of = {}
  for _, key in ipairs(keys) do
    pairs_of[#pairs_of + 1] = key
    pairs_of[#pairs_of + 1] = ARGV[7]
  end
  redis.call('MSET', unpack(pairs_of))
  for _, giver in pairs(givers_of) do redis.call('ZADD', giver.list, 0, giver.position) end
end

-- Moves a call from the index and list of its former state to those of its new state, and corrects the census.
local function move(before, state, score)
  if before ~= state and INDEXES[before] then
    local was = redis.call('ZREM', INDEXES[before], ARGV[8])
    if COUNTED[before] and was == 1 then redis.call('HINCRBY', KEYS[5], COUNTED[before] .. ARGV[9], -1) end
    if LISTS[before] then redis.call('ZREM', LISTS[before], ARGV[8]) end
  end
  if INDEXES[state] then
    local is = redis.call('ZADD', INDEXES[state], score, ARGV[8])
    if COUNTED[state] and is == 1 then redis.call('HINCRBY', KEYS[5], COUNTED[state] .. ARGV[9], 1) end
    if LISTS[state] then redis.call('ZADD', LISTS[state], 0, ARGV[8]) end
  end
end

-- Puts a call into its lists. `tenant` is given if the tenant and the tool may not be listed yet.
local function enlist(tenant)
  for n = 20, givers - 1 do redis.call('ZADD', KEYS[n], 0, ARGV[8]) end
  if tenant ~= '' then
    redis.call('SADD', KEYS[16], tenant)
    redis.call('SADD', KEYS[17], ARGV[9])
  end
end

-- Appends a change of a call to the stream of changes. `entry` is empty if the stream is off.
local function tell(call_id, state, entry)
  if entry == '' then return end
  redis.call('XADD', KEYS[15], 'MAXLEN', '~', FOLLOWED, '*', 'call_id', call_id, 'tool', ARGV[9], 'state', state, 'entry', entry)
end

-- Sets from when on a finished call may be deleted; '' for never. No call has a time to live in Redis, because a deletion
-- must remove its list entries in the same step.
local function retain(is_kept, until_when, earliest)
  if until_when ~= '' then
    redis.call('ZADD', KEYS[14], until_when, ARGV[8])
    if not earliest or tonumber(until_when) < tonumber(earliest) then redis.call('SET', KEYS[4], until_when) end
  elseif is_kept then
    redis.call('ZREM', KEYS[14], ARGV[8])
  end
end
