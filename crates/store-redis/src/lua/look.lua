-- Reads a session, its line and its events.
--
-- KEYS: 1 session, 2 line, 3 events
return {
  redis.call('HMGET', KEYS[1], 'token', 'frozen', 'lock', 'lock_token', 'lock_lease', 'lock_from'),
  redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'),
  redis.call('LRANGE', KEYS[3], 0, -1),
}
