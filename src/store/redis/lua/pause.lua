-- What a person does to a tool: pauses or resumes it; and an entry that says so, if it was not so before.
--
-- KEYS: 1 the paused tools, 2 the tool's events
-- ARGV: 1 'pause' or 'resume', 2 tool, 3 entry
local paused = redis.call('HGET', KEYS[1], ARGV[2])
if ARGV[1] == 'pause' then
  if paused then return 0 end
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
else
  if not paused then return 0 end
  redis.call('HDEL', KEYS[1], ARGV[2])
end
redis.call('LPUSH', KEYS[2], ARGV[3])
redis.call('LTRIM', KEYS[2], 0, 99)
-- As long as a finished call is kept by default.
redis.call('PEXPIRE', KEYS[2], 2592000000)
return 1
