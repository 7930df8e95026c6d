-- Puts back a record that a gateway remembers and the store may have lost. What the store has and is
-- as new stays. Sets each of its names that is free. A name that another call holds is taken only from one that gives
-- it up. Run again after it broke off, or after a conflict, it ends as if it had run once.
--
-- KEYS: as in common
-- ARGV: 1 prefix; 5 call id, 6 version, 7 cas, 8 intent, 9 args, 10 progress, 11 fencing token,
--       12 '1' if there is a result, 13 result, 14 tool, 15 state, 16 score, 17 from when on it may be deleted or '',
--       18 entry's field, 19 entry, 20 the calls that give up these names, as JSON: { id: cas }, 21 similar call or '',
--       22 lease of the session's lock, if the call had it, or '', 23 from when on that is free or '',
--       24 position, 25 tenant
-- Answers 'there' or 'put', or 'conflict' and the calls that hold a name.
local gives_up = cjson.decode(ARGV[20])
local cas = redis.call('HGET', KEYS[2], 'cas')
local is_there = cas and tonumber(string.match(cas, '^%d+')) >= tonumber(ARGV[6])

if not is_there then
  move(ARGV[5], ARGV[14], ARGV[15], ARGV[16], ARGV[24])
  enlist(ARGV[24], ARGV[25])
  retain(ARGV[5], ARGV[17])
  if ARGV[22] ~= '' then hold(KEYS[9], ARGV[5], ARGV[11], ARGV[22], ARGV[23]) end
  if ARGV[12] == '1' then
    redis.call('HSET', KEYS[2], 'result', ARGV[13])
  else
    redis.call('HDEL', KEYS[2], 'result')
  end
  -- From here on it is there: all but its names is written.
  redis.call('HSET', KEYS[2], 'cas', ARGV[7], 'intent', ARGV[8], 'args', ARGV[9], 'progress', ARGV[10],
    'fencing', ARGV[11], 'similar_to', ARGV[21], ARGV[18], ARGV[19])
  tell(ARGV[5], ARGV[14], ARGV[15], ARGV[19])
end
local answer, is_named = { 'conflict' }, {}
each_name(function(name)
  local holder = redis.call('GET', name)
  if holder == ARGV[5] then return nil end
  if not holder or gives_up[holder] and redis.call('HGET', ARGV[1] .. 'call:' .. holder, 'cas') == gives_up[holder] then
    redis.call('SET', name, ARGV[5])
  elseif not is_named[holder] then
    is_named[holder] = true
    answer[#answer + 1] = holder
  end
end)
if #answer > 1 then return answer end
return { is_there and 'there' or 'put' }
