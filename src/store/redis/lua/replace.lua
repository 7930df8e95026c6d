-- Writes a change of a call, if the call is still what was expected; and if something is to be sent
-- after it, only while the call holds its key. Asked again, it is done.
--
-- KEYS: 1 the call, 2 the key's holder; 3 the session's token, if it is drawn here
-- ARGV: 1 prefix, 2 gateway, 3 epoch or '' if no effect can follow, 4 known writes, 5 call id,
--       6 expected cas, 7 expected fencing token, 8 cas, 9 progress, 10 '1' if there is a result,
--       11 result, 12 entry's field, 13 entry, 14 tool, 15 state, 16 score, 17 time to live or '',
--       18 'draw', 'keep' or the fencing token, 19 floor, 20 'PUBLISH', 'SPUBLISH' or ''
local prefix = ARGV[1]
local stored = redis.call('HMGET', KEYS[1], 'cas', 'fencing', 'progress')
if not stored[1] then return { 'gone' } end
if stored[1] == ARGV[8] and stored[3] == ARGV[9] then
  return { 'done', stored[2], '' }
end
if stored[1] ~= ARGV[6] or stored[2] ~= ARGV[7] then return { 'changed', fields(KEYS[1]) } end
if ARGV[3] ~= '' then
  local holder = redis.call('GET', KEYS[2])
  if holder ~= ARGV[5] then return { 'changed', holder and fields(prefix .. 'call:' .. holder) or {} } end
  local why = missing(prefix, ARGV[2], ARGV[3], ARGV[4])
  if why then return { 'lost', why } end
end

local token = ARGV[18]
if token == 'keep' then token = stored[2] end
if token == 'draw' then token = draw(KEYS[3], ARGV[19]) end
redis.call('HSET', KEYS[1], 'cas', ARGV[8], 'progress', ARGV[9], 'fencing', token, ARGV[12], ARGV[13])
if ARGV[10] == '1' then
  redis.call('HSET', KEYS[1], 'result', ARGV[11])
else
  redis.call('HDEL', KEYS[1], 'result')
end
move(prefix, ARGV[5], ARGV[14], ARGV[15], ARGV[16])
retain(KEYS[1], ARGV[17])
if redis.call('GET', KEYS[2]) == ARGV[5] then retain(KEYS[2], ARGV[17]) end
local writes = count(prefix, ARGV[2], ARGV[4])
if ARGV[20] ~= '' then redis.call(ARGV[20], prefix .. 'endings', ARGV[5]) end
return { 'done', token, writes }
