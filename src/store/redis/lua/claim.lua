-- Claims all names of a call, if its conditions hold, with its record, its first ledger entry, its place in the
-- index of running calls, and what follows from the conditions. Asked again, it is done.
--
-- KEYS: as in common
-- ARGV: 5 call id, 6 the calls that give up these names, as JSON: { id: cas },
--       7 cas, 8 intent, 9 args, 10 progress, 11 entry, 12 tool, 13 lease,
--       14 conditions or '', 15 and 16 fencing token and similar call, where the conditions were met before,
--       17 position, 18 tenant
local gives_up = cjson.decode(ARGV[6])
local held = each_name(function(name)
  local holder = redis.call('GET', name)
  if not holder then return nil end
  if holder == ARGV[5] then
    local stored = redis.call('HMGET', KEYS[2], 'cas', 'fencing', 'similar_to')
    if stored[1] ~= ARGV[7] then return { 'held', fields(KEYS[2]) } end
    local why = missing()
    if why then return { 'lost', why } end
    return { 'done', stored[2], written(), stored[3] or '' }
  end
  local call = ARGV[1] .. 'call:' .. holder
  if not gives_up[holder] or redis.call('HGET', call, 'cas') ~= gives_up[holder] then
    return { 'held', fields(call) }
  end
end)
if held then return held end
local why = missing()
if why then return { 'lost', why } end
local token, other = ARGV[15], ARGV[16]
local admission, now = ARGV[14] ~= '' and cjson.decode(ARGV[14]), clock()
if admission then
  local denied = denial(rooms(9), admission, now)
  if denied then return denied end
  token, other = enter(rooms(9), admission, now)
end

each_name(function(name) redis.call('SET', name, ARGV[5]) end)
redis.call('HSET', KEYS[2], 'cas', ARGV[7], 'intent', ARGV[8], 'args', ARGV[9], 'progress', ARGV[10],
  'fencing', token, 'similar_to', other, 'e:1', ARGV[11])
move(ARGV[5], ARGV[12], 'running', ARGV[13], ARGV[17])
enlist(ARGV[17], ARGV[18])
tell(ARGV[5], ARGV[12], 'running', ARGV[11])
return { 'done', token, count(), other }
