-- An operator's act on a tool: pauses or resumes it. Writes an entry about the act, unless the tool was in that state
-- already. Counted, so that its loss is noticed. Works also on a store that has lost data, to put a pause back.
--
-- KEYS: 1 the paused tools, 2 the tool's events, 3 marks
-- ARGV: 2 gateway, 3 epoch, 4 known writes, 5 'pause' or 'resume', 6 tool, 7 entry
read_marks(redis.call('GET', KEYS[3]))
local is_paused = redis.call('HGET', KEYS[1], ARGV[6]) ~= false
if is_paused == (ARGV[5] == 'pause') then return { 'same', marks.writes } end
if is_paused then
  redis.call('HDEL', KEYS[1], ARGV[6])
else
  redis.call('HSET', KEYS[1], ARGV[6], ARGV[7])
end
redis.call('LPUSH', KEYS[2], ARGV[7])
redis.call('LTRIM', KEYS[2], 0, 99)
-- As long as a finished call is kept by default.
redis.call('PEXPIRE', KEYS[2], 2592000000)
return { 'done', count() }
