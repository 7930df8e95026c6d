-- Common to the scripts about calls. Scripts hold no rules: they compare, and write what they are told.
-- Each script checks first and writes last, because Redis keeps the writes of a script that breaks off. All keys that
-- are written are declared, so that Redis Cluster refuses a slot on the move before the script runs.
--
-- A *giver* is a call past its window whose names this call takes. `cas` is what compare-and-swap compares: version and
-- attempt.
--
-- KEYS: 1 the holder of the call's key, 2 the call, 3 marks, 4 the earliest time at which a call may be deleted,
--       5 census, 6 running, 7 unknown, 8 failed, 9 to 13 session, line, its live waiters, budget, similar calls,
--       14 finished calls by when they may be deleted, 15 stream, 16 tenants, 17 the tenant's tools,
--       18 to 21 the tenant's lists of unknown, failed, proposed and approved calls, 22 calls that wait for approval,
--       23 and more: the other lists of the call; for each giver the list of calls with its key; the holders of the
--       call's further names
-- ARGV: 1 prefix, 2 gateway, 3 epoch, 4 known writes, 5 number of the other lists,
--       6 the givers: of each its id, cas and position, together 70 bytes, 7 call id, 8 position, 9 tool,
--       10 cas, 11 progress, 12 result, 13 state, 14 its letter, 15 score, 16 from when on the call may be deleted or '',
--       17 ledger entry, 18 the same for the stream or '', 19 intent, 20 arguments

local INDEXES = { r = KEYS[6], u = KEYS[7], f = KEYS[8], p = KEYS[22], a = KEYS[22] }
local LISTS = { u = KEYS[18], f = KEYS[19], p = KEYS[20], a = KEYS[21] }
local COUNTED = { r = 'running:', u = 'unknown:', p = 'proposed:', a = 'approved:' }
local KEPT = ARGV[16] ~= '' and 'k' or '-'
-- About how many entries a stream keeps.
local FOLLOWED = 1000
-- The first key of the givers' lists, and the first key of the further names.
local first_giver = 23 + tonumber(ARGV[5])
local first_name = first_giver + #ARGV[6] / 70

-- The givers by their ids: the cas, the position, and the list of calls with the giver's key.
local givers = {}
for n = 0, first_name - first_giver - 1 do
  local id, cas, position = struct.unpack('c22c24c24', ARGV[6], 70 * n + 1)
  givers[id] = { cas = cas, position = position, list = KEYS[first_giver + n] }
end

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

-- The text of the call as the arguments describe it.
local function new_call(token, other, entries)
  return pack_call({ cas = ARGV[10], token = token, other = other, progress = ARGV[11], intent = ARGV[19],
    entries = entries, args = ARGV[20], result = ARGV[12], state = ARGV[14], kept = KEPT })
end

-- Whether this call is a giver and has not changed since the gateway read it. Reads only the head of the call.
local function gives_up(id)
  if not givers[id] then return false end
  local head = redis.call('GETRANGE', ARGV[1] .. 'call:' .. id, 0, 47)
  return #head == 48 and string.sub(head, 25, 48) == givers[id].cas
end

-- Reads the marks, and who holds the names of the call. Returns the keys of the names, and the ids of the calls that hold
-- them, `false` for a free name.
local function read_marks_and_names()
  local keys = { KEYS[1] }
  for n = first_name, #KEYS do keys[#keys + 1] = KEYS[n] end
  local found = redis.call('MGET', KEYS[3], unpack(keys))
  read_marks(table.remove(found, 1))
  return keys, found
end

-- Gives these names to the call. The command that does so begins with `written`, other keys and their values. Puts each giver
-- into the list of its key, which finds it from then on.
local function take(keys, written)
  if #keys == 0 then return end
  for _, key in ipairs(keys) do
    written[#written + 1] = key
    written[#written + 1] = ARGV[7]
  end
  redis.call('MSET', unpack(written))
  for _, giver in pairs(givers) do redis.call('ZADD', giver.list, 0, giver.position) end
end

-- Moves the call from the index and list of its former state to those of its new state, and corrects the census.
local function move(before)
  local state = ARGV[14]
  if before ~= state and INDEXES[before] then
    local was = redis.call('ZREM', INDEXES[before], ARGV[8])
    if COUNTED[before] and was == 1 then redis.call('HINCRBY', KEYS[5], COUNTED[before] .. ARGV[9], -1) end
    if LISTS[before] then redis.call('ZREM', LISTS[before], ARGV[8]) end
  end
  if INDEXES[state] then
    local is = redis.call('ZADD', INDEXES[state], ARGV[15], ARGV[8])
    if COUNTED[state] and is == 1 then redis.call('HINCRBY', KEYS[5], COUNTED[state] .. ARGV[9], 1) end
    if LISTS[state] then redis.call('ZADD', LISTS[state], 0, ARGV[8]) end
  end
end

-- Puts the call into its lists. `tenant` is given if the tenant and the tool may not be listed yet.
local function enlist(tenant)
  for n = 23, first_giver - 1 do redis.call('ZADD', KEYS[n], 0, ARGV[8]) end
  if tenant ~= '' then
    redis.call('SADD', KEYS[16], tenant)
    redis.call('SADD', KEYS[17], ARGV[9])
  end
end

-- Appends the change to the stream of changes, if the stream is on.
local function tell()
  if ARGV[18] == '' then return end
  redis.call('XADD', KEYS[15], 'MAXLEN', '~', FOLLOWED, '*', 'call_id', ARGV[7], 'tool', ARGV[9], 'state', ARGV[13],
    'entry', ARGV[18])
end

-- Sets from when on the finished call may be deleted. No call has a time to live in Redis, because a deletion must
-- remove its list entries in the same step.
local function retain(was_kept, earliest)
  if KEPT == 'k' then
    redis.call('ZADD', KEYS[14], ARGV[16], ARGV[8])
    if not earliest or tonumber(ARGV[16]) < tonumber(earliest) then redis.call('SET', KEYS[4], ARGV[16]) end
  elseif was_kept then
    redis.call('ZREM', KEYS[14], ARGV[8])
  end
end
