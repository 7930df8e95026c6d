-- Claims a key for a call, if its terms hold, with its record, its first ledger entry, its place in the
-- index of running calls, and what follows from the terms. Asked again, it is done.
--
-- KEYS: as in common; 20 the call that gives up the key
-- ARGV: 5 call id, 6 and 7 the call that gives up the key, and its cas, or '',
--       8 cas, 9 intent, 10 args, 11 progress, 12 entry, 13 tool, 14 lease,
--       15 terms or '', 16 and 17 fencing token and similar call, where the terms were met before,
--       18 position, 19 tenant
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[5] then
  local stored = redis.call('HMGET', KEYS[2], 'cas', 'fencing', 'similar_to')
  if stored[1] ~= ARGV[8] then return { 'held', fields(KEYS[2]) } end
  local why = missing()
  if why then return { 'lost', why } end
  return { 'done', stored[2], written(), stored[3] or '' }
end
if holder and (holder ~= ARGV[6] or redis.call('HGET', KEYS[20], 'cas') ~= ARGV[7]) then
  return { 'held', fields(ARGV[1] .. 'call:' .. holder) }
end
local why = missing()
if why then return { 'lost', why } end
local token, other = ARGV[16], ARGV[17]
local terms, now = ARGV[15] ~= '' and cjson.decode(ARGV[15]), clock()
if terms then
  local bar = barred(rooms(9), terms, now)
  if bar then return bar end
  token, other = enter(rooms(9), terms, now)
end

if holder then
  redis.call('SET', KEYS[1], ARGV[5])
else
  redis.call('SET', KEYS[1], ARGV[5], 'NX')
end
redis.call('HSET', KEYS[2], 'cas', ARGV[8], 'intent', ARGV[9], 'args', ARGV[10], 'progress', ARGV[11],
  'fencing', token, 'similar_to', other, 'e:1', ARGV[12])
move(ARGV[5], ARGV[13], 'running', ARGV[14], ARGV[18])
enlist(ARGV[18], ARGV[19])
tell(ARGV[5], ARGV[13], 'running', ARGV[12])
return { 'done', token, count(), other }
