-- Claims a key for a call, with its record, its first ledger entry, its place in the index of running
-- calls, and the session's next fencing token.
--
-- KEYS: 1 the key's holder, 2 the call; 3 the session's token, if it is drawn here
-- ARGV: 1 prefix, 2 gateway, 3 epoch, 4 known writes, 5 call id, 6 the call that gives up the key or '',
--       7 cas, 8 intent, 9 args, 10 progress, 11 entry, 12 tool, 13 lease,
--       14 'draw' or the fencing token, 15 floor
local prefix = ARGV[1]
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[6] then
  return { 'held', fields(prefix .. 'call:' .. holder) }
end
local why = missing(prefix, ARGV[2], ARGV[3], ARGV[4])
if why then return { 'lost', why } end

if holder then
  redis.call('SET', KEYS[1], ARGV[5])
else
  redis.call('SET', KEYS[1], ARGV[5], 'NX')
end
local token = ARGV[14]
if token == 'draw' then token = draw(KEYS[3], ARGV[15]) end
redis.call('HSET', KEYS[2], 'cas', ARGV[7], 'intent', ARGV[8], 'args', ARGV[9], 'progress', ARGV[10],
  'fencing', token, 'e:1', ARGV[11])
move(prefix, ARGV[5], ARGV[12], 'running', ARGV[13])
return { 'done', token, count(prefix, ARGV[2], ARGV[4]) }
