-- What a person does to a session: takes the lock away from one run of a call, or freezes or thaws it;
-- and an entry that says so, if it was not so before.
--
-- KEYS: 1 session, 2 its events
-- ARGV: 1 'unlock', 'freeze' or 'thaw', 2 entry, 3 and 4 the call that has the lock, and its token
local session = redis.call('HMGET', KEYS[1], 'lock', 'lock_token', 'frozen')
if ARGV[1] == 'unlock' then
  if session[1] ~= ARGV[3] or session[2] ~= ARGV[4] then return 0 end
  redis.call('HDEL', KEYS[1], 'lock', 'lock_token', 'lock_lease', 'lock_from')
elseif ARGV[1] == 'freeze' then
  if session[3] then return 0 end
  redis.call('HSET', KEYS[1], 'frozen', '1')
else
  if not session[3] then return 0 end
  redis.call('HDEL', KEYS[1], 'frozen')
end
redis.call('LPUSH', KEYS[2], ARGV[2])
redis.call('LTRIM', KEYS[2], 0, 99)
-- As long as a finished call is kept by default.
redis.call('PEXPIRE', KEYS[2], 2592000000)
remember(KEYS[1])
return 1
