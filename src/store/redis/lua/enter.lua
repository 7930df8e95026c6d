-- Draws a session's next fencing token, or takes the one that a caller brings, where the session is in
-- another slot than the call. Answers also with the newest before it.
--
-- KEYS: 1 session, 2 line, 3 who is alive in it, 4 and 5 again the session
-- ARGV: 1 terms
local terms, now = cjson.decode(ARGV[1]), clock()
local bar = barred(rooms(1), terms, now)
if bar then return bar end
local before = redis.call('HGET', KEYS[1], 'token') or ''
local token = enter(rooms(1), terms, now)
return { 'done', token, before }
