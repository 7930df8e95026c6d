-- Takes a call that is not there out of an index or a list. One that was put back meanwhile stays in it.
--
-- KEYS: 1 call, 2 index or list
-- ARGV: 1 position
if redis.call('EXISTS', KEYS[1]) == 1 then return { 'there' } end
redis.call('ZREM', KEYS[2], ARGV[1])
return { 'done' }
