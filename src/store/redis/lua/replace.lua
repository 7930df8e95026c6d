-- Writes a change of a call, if the call is still what was expected; and if something is to be sent
-- after it, only while the call holds its key and no data is missing. Asked again, it is done.
--
-- KEYS: as in common
-- ARGV: 3 is '' if nothing is to be sent after it; 5 call id, 6 expected cas, 7 expected fencing token,
--       8 cas, 9 progress, 10 '1' if there is a result, 11 result, 12 entry's field, 13 entry, 14 tool,
--       15 state, 16 score, 17 time to live or '', 18 'draw', 'keep' or the fencing token, 19 floor,
--       20 'PUBLISH', 'SPUBLISH' or ''
local begins = ARGV[3] ~= ''
local stored = redis.call('HMGET', KEYS[2], 'cas', 'fencing', 'progress')
if not stored[1] then return { 'gone' } end
local again = stored[1] == ARGV[8] and stored[3] == ARGV[9]
if not again and (stored[1] ~= ARGV[6] or stored[2] ~= ARGV[7]) then
  return { 'changed', fields(KEYS[2]) }
end
local holder = redis.call('GET', KEYS[1])
if begins then
  if holder ~= ARGV[5] then
    return { 'changed', holder and fields(ARGV[1] .. 'call:' .. holder) or {} }
  end
  local why = missing()
  if why then return { 'lost', why } end
end

local token = stored[2]
if not again then
  if ARGV[18] == 'draw' then
    token = draw(KEYS[9], ARGV[19])
  elseif ARGV[18] ~= 'keep' then
    token = ARGV[18]
  end
  redis.call('HSET', KEYS[2], 'cas', ARGV[8], 'progress', ARGV[9], 'fencing', token, ARGV[12], ARGV[13])
end
if ARGV[10] == '1' then
  redis.call('HSET', KEYS[2], 'result', ARGV[11])
else
  redis.call('HDEL', KEYS[2], 'result')
end
move(ARGV[5], ARGV[14], ARGV[15], ARGV[16])
retain(KEYS[2], ARGV[17])
if holder == ARGV[5] then retain(KEYS[1], ARGV[17]) end
local writes = again and written() or count()
if ARGV[20] ~= '' then redis.call(ARGV[20], ARGV[1] .. 'endings', ARGV[5]) end
return { 'done', token, writes }
