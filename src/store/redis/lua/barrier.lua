-- A small write of our own, behind those that replicas must have. Not counted: it says nothing.
--
-- KEYS: 1 what is written
redis.call('SET', KEYS[1], '')
return { 'done' }
