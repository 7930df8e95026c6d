-- The call that holds a key.
--
-- KEYS: 1 the key's holder
-- ARGV: 1 prefix
local holder = redis.call('GET', KEYS[1])
if not holder then return nil end
return redis.call('HMGET', ARGV[1] .. 'call:' .. holder, 'intent', 'args', 'progress', 'fencing', 'result',
  'similar_to')
