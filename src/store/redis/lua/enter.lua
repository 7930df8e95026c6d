-- Draws a session's next fencing token, or takes the one that a caller brings, where the session is in
-- another slot than the call. Answers also with the newest before it. Counted, so that its loss is noticed.
--
-- KEYS: 1 and 2 the session, 3 epoch, 4 everyone's writes, 5 session, 6 line, 7 its live waiters,
--       8 and 9 again the session
-- ARGV: 2 gateway, 3 epoch, 4 known writes, 5 conditions
local why = missing()
if why then return { 'lost', why } end
local admission, now = cjson.decode(ARGV[5]), clock()
local denied = denial(rooms(5), admission, now)
if denied then return denied end
local before = redis.call('HGET', KEYS[1], 'token') or ''
local token = enter(rooms(5), admission, now)
return { 'done', token, before, count() }
