-- Puts back a record that a gateway remembers and the store may have lost. What the store has and is
-- as new stays. A key that another call holds by now is not taken from it.
--
-- KEYS: 1 the call, 2 the key's holder; 3 the session's token
-- ARGV: 1 prefix, 2 call id, 3 version, 4 cas, 5 intent, 6 args, 7 progress, 8 fencing token,
--       9 '1' if there is a result, 10 result, 11 tool, 12 state, 13 score, 14 time to live or '';
--       then fields and entries of the ledger in turn
local prefix = ARGV[1]
local cas = redis.call('HGET', KEYS[1], 'cas')
if cas and tonumber(string.match(cas, '^%d+')) >= tonumber(ARGV[3]) then return 'there' end

redis.call('HSET', KEYS[1], 'cas', ARGV[4], 'intent', ARGV[5], 'args', ARGV[6], 'progress', ARGV[7],
  'fencing', ARGV[8])
if ARGV[9] == '1' then
  redis.call('HSET', KEYS[1], 'result', ARGV[10])
else
  redis.call('HDEL', KEYS[1], 'result')
end
for at = 15, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
move(prefix, ARGV[2], ARGV[11], ARGV[12], ARGV[13])
retain(KEYS[1], ARGV[14])
local holder = redis.call('GET', KEYS[2])
if not holder then redis.call('SET', KEYS[2], ARGV[2]) end
if not holder or holder == ARGV[2] then
  retain(KEYS[2], ARGV[14])
  return 'put'
end
return 'conflict'
