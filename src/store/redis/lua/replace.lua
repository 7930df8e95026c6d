-- Writes a change of a call, if the call is still what was expected; and if something is to be sent
-- after it or names are taken, only while the call holds its names and no data is missing. Asked again, it is done.
--
-- KEYS: as in common
-- ARGV: 3 is '' if nothing is to be sent after it and no name is taken; 5 call id, 6 expected cas, 7 expected fencing token,
--       8 cas, 9 progress, 10 '1' if there is a result, 11 result, 12 entry's field, 13 entry, 14 tool,
--       15 state, 16 score, 17 from when on it may be deleted or '', 18 conditions or '', 19 and 20 'keep', or fencing token and
--       similar call, where the conditions were met before; 21 from when on the session's lock is free, 'now' or
--       '', 22 '1' if nothing shall look like it any more, 23 'PUBLISH', 'SPUBLISH' or '', 24 '1' if the call
--       retakes the lock when no call has it, 25 position, 26 how many of the last keys are names that the call
--       takes, 27 the calls that give these up, as JSON: { id: cas }, 28 and 29 intent and args, if something is
--       to be sent after it
local begins = ARGV[3] ~= ''
local takes = {}
for n = #KEYS - tonumber(ARGV[26]) + 1, #KEYS do takes[KEYS[n]] = true end
local stored = redis.call('HMGET', KEYS[2], 'cas', 'fencing', 'progress', 'similar_to')
if not stored[1] then return { 'gone' } end
local again = stored[1] == ARGV[8] and stored[3] == ARGV[9]
if not again and (stored[1] ~= ARGV[6] or stored[2] ~= ARGV[7]) then
  return { 'changed', fields(KEYS[2]) }
end
if begins then
  local gives_up = cjson.decode(ARGV[27])
  local other = each_name(function(name)
    local holder = redis.call('GET', name)
    if holder == ARGV[5] then return nil end
    local call = holder and ARGV[1] .. 'call:' .. holder
    if takes[name] and (not holder or gives_up[holder] and redis.call('HGET', call, 'cas') == gives_up[holder]) then
      return nil
    end
    return { 'changed', holder and fields(call) or {} }
  end)
  if other then return other end
  local why = missing()
  if why then return { 'lost', why } end
end

local token, other = stored[2], stored[4] or ''
if not again then
  local admission, now = ARGV[18] ~= '' and cjson.decode(ARGV[18]), clock()
  if admission then
    local denied = denial(rooms(9), admission, now)
    if denied then return denied end
    token, other = enter(rooms(9), admission, now)
  elseif ARGV[19] ~= 'keep' then
    token, other = ARGV[19], ARGV[20]
  end
  redis.call('HSET', KEYS[2], 'cas', ARGV[8], 'progress', ARGV[9], 'fencing', token, 'similar_to', other,
    ARGV[12], ARGV[13])
  if ARGV[28] then redis.call('HSET', KEYS[2], 'intent', ARGV[28], 'args', ARGV[29]) end
  for name in pairs(takes) do redis.call('SET', name, ARGV[5]) end
end
if ARGV[10] == '1' then
  redis.call('HSET', KEYS[2], 'result', ARGV[11])
else
  redis.call('HDEL', KEYS[2], 'result')
end
move(ARGV[5], ARGV[14], ARGV[15], ARGV[16], ARGV[25])
retain(ARGV[5], ARGV[17])
if not again then tell(ARGV[5], ARGV[14], ARGV[15], ARGV[13]) end
if ARGV[21] ~= '' then release(KEYS[9], ARGV[5], token, ARGV[21], ARGV[24] == '1') end
if ARGV[22] == '1' then redis.call('ZREM', KEYS[13], ARGV[5]) end
local writes = again and written() or count()
if ARGV[23] ~= '' then redis.call(ARGV[23], ARGV[1] .. 'endings', ARGV[5]) end
return { 'done', token, writes, other }
