-- Gives a damaged call a later time in the index of deletable calls. Works when memory is full: such a call must not
-- keep cleanup from making room. A later time that another gateway gave it meanwhile stays.
-- Answers how many got the later time.
--
-- KEYS: 1 finished calls by when they may be deleted
-- ARGV: 1 time, 2 position
return { 'done', redis.call('ZADD', KEYS[1], 'XX', 'GT', 'CH', ARGV[1], ARGV[2]) }
