-- Gives a call that cannot be read a later time among those that may be deleted. Works when memory is full: one such
-- call must not keep cleanup from making room.
--
-- KEYS: 1 finished calls by when they may be deleted
-- ARGV: 1 time, 2 position
redis.call('ZADD', KEYS[1], 'XX', ARGV[1], ARGV[2])
return { 'done' }
