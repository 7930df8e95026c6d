-- Claims a key for a call, with its record, its first ledger entry, its place in the index of running
-- calls, and the session's next fencing token.
--
-- KEYS: 1 the key's holder, 2 the call; 3 the session's token, if it is drawn here
-- ARGV: 1 prefix, 2 gateway, 3 epoch, 4 known writes, 5 call id,
--       6 and 7 the call that gives up the key, and its cas, or '',
--       8 cas, 9 intent, 10 args, 11 progress, 12 entry, 13 tool, 14 lease,
--       15 'draw' or the fencing token, 16 floor
local prefix = ARGV[1]
local holder = redis.call('GET', KEYS[1])
if holder and (holder ~= ARGV[6] or redis.call('HGET', prefix .. 'call:' .. holder, 'cas') ~= ARGV[7]) then
  return { 'held', fields(prefix .. 'call:' .. holder) }
end
local why = missing(prefix, ARGV[2], ARGV[3], ARGV[4])
if why then return { 'lost', why } end

if holder then
  redis.call('SET', KEYS[1], ARGV[5])
else
  redis.call('SET', KEYS[1], ARGV[5], 'NX')
end
local token = ARGV[15]
if token == 'draw' then token = draw(KEYS[3], ARGV[16]) end
redis.call('HSET', KEYS[2], 'cas', ARGV[8], 'intent', ARGV[9], 'args', ARGV[10], 'progress', ARGV[11],
  'fencing', token, 'e:1', ARGV[12])
move(prefix, ARGV[5], ARGV[13], 'running', ARGV[14])
return { 'done', token, count(prefix, ARGV[2], ARGV[4]) }
