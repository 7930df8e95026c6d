-- Deletes a document past its retention, and removes it from every index and list. Deletes nothing from data that the
-- gateway does not know. Returns whether it was deleted.
--
-- KEYS: as in put_document, up to 9
-- ARGV: 2 gateway, 3 epoch, 4 known writes, 5 digest, 6 position, 7 now, 8 state
read_marks(redis.call('GET', KEYS[3]))
local lost = lost_by_marks()
if lost then return lost end
local until_when = tonumber(redis.call('ZSCORE', KEYS[4], ARGV[5]) or '')
if not until_when or until_when > tonumber(ARGV[7]) then return { 'kept' } end
if redis.call('HGET', KEYS[1], 'state') ~= ARGV[8] then return { 'kept' } end
redis.call('ZREM', KEYS[2], ARGV[5])
redis.call('ZREM', KEYS[4], ARGV[5])
for n = 6, 9 do redis.call('ZREM', KEYS[n], ARGV[6]) end
redis.call('HINCRBY', KEYS[5], ARGV[8], -1)
redis.call('DEL', KEYS[1])
return { 'done' }
