-- A small write after the writes that replicas must have. Not counted: it holds no data.
--
-- KEYS: 1 the key that is written
redis.call('SET', KEYS[1], '')
return { 'done' }
