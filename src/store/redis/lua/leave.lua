-- Gives up a place in the line. It is not counted: it is forgotten by itself in seconds.
--
-- KEYS: 1 line, 2 its live waiters
-- ARGV: 1 call id
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return { 'done' }
