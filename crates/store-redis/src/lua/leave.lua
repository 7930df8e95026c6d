-- Gives up a call's place in the line. Not counted: a place ends by itself within seconds.
--
-- KEYS: 1 line, 2 its live waiters
-- ARGV: 1 call id
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return { 'done' }
