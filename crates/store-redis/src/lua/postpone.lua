-- Gives a damaged call a later time in the index of deletable calls. Works when memory is full: such a call must not
-- keep cleanup from making room. A call whose time there is after now stays as it is: its retention was prolonged, or
-- another gateway was faster. Answers how many calls got the later time.
--
-- KEYS: 1 finished calls by when they may be deleted
-- ARGV: 1 time, 2 position, 3 now
local at = redis.call('ZSCORE', KEYS[1], ARGV[2])
if at and tonumber(at) > tonumber(ARGV[3]) then
  return { 'done', 0 }
end
return { 'done', redis.call('ZADD', KEYS[1], 'XX', 'GT', 'CH', ARGV[1], ARGV[2]) }
