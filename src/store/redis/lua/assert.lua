-- Puts back a record that a gateway remembers and the store may have lost. What the store has and is
-- as new stays. A name that another call holds by now is not taken from it, unless that one is named.
--
-- KEYS: as in common
-- ARGV: 1 prefix; 5 call id, 6 version, 7 cas, 8 intent, 9 args, 10 progress, 11 fencing token,
--       12 '1' if there is a result, 13 result, 14 tool, 15 state, 16 score, 17 from when on it may be deleted or '',
--       18 entry's field, 19 entry, 20 the call to take names from or '', 21 similar call or '',
--       22 lease of the session's lock, if the call had it, or '', 23 from when on that is free or '',
--       24 position, 25 tenant
local cas = redis.call('HGET', KEYS[2], 'cas')
local is_there = cas and tonumber(string.match(cas, '^%d+')) >= tonumber(ARGV[6])
if is_there and ARGV[20] == '' then return { 'there' } end

if not is_there then
  redis.call('HSET', KEYS[2], 'cas', ARGV[7], 'intent', ARGV[8], 'args', ARGV[9], 'progress', ARGV[10],
    'fencing', ARGV[11], 'similar_to', ARGV[21], ARGV[18], ARGV[19])
  if ARGV[12] == '1' then
    redis.call('HSET', KEYS[2], 'result', ARGV[13])
  else
    redis.call('HDEL', KEYS[2], 'result')
  end
  move(ARGV[5], ARGV[14], ARGV[15], ARGV[16], ARGV[24])
  enlist(ARGV[24], ARGV[25])
  retain(ARGV[5], ARGV[17])
  tell(ARGV[5], ARGV[14], ARGV[15], ARGV[19])
  if ARGV[22] ~= '' then hold(KEYS[9], ARGV[5], ARGV[11], ARGV[22], ARGV[23]) end
end
local conflict = each_name(function(name)
  local holder = redis.call('GET', name)
  if not holder or holder == ARGV[20] then
    redis.call('SET', name, ARGV[5])
  elseif holder ~= ARGV[5] then
    return { 'conflict', holder }
  end
end)
return conflict or { 'put' }
