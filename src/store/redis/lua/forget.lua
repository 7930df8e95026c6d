-- Deletes a finished call whose retention is over, and takes it out of every index and list. Answers whether it
-- did.
--
-- KEYS: as in common
-- ARGV: 5 call id, 6 position, 7 now
local until_when = tonumber(redis.call('ZSCORE', KEYS[14], ARGV[5]) or '')
if not until_when or until_when > tonumber(ARGV[7]) then return { 'kept' } end
if redis.call('GET', KEYS[1]) == ARGV[5] then redis.call('DEL', KEYS[1]) end
for n = 6, 8 do redis.call('ZREM', KEYS[n], ARGV[5]) end
for n = 17, 19 do redis.call('ZREM', KEYS[n], ARGV[6]) end
for n = 21, #KEYS do redis.call('ZREM', KEYS[n], ARGV[6]) end
redis.call('ZREM', KEYS[14], ARGV[5])
redis.call('DEL', KEYS[2])
return { 'done' }
