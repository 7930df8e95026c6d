-- Removes a position from an index or a list, if its call does not exist. A call that was put back meanwhile stays.
--
-- KEYS: 1 call, 2 index or list
-- ARGV: 1 position
if redis.call('EXISTS', KEYS[1]) == 1 then return { 'there' } end
redis.call('ZREM', KEYS[2], ARGV[1])
return { 'done' }
