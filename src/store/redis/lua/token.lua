-- Draws a session's next fencing token, where the session lives in another slot than the call.
--
-- KEYS: 1 the session's token
-- ARGV: 1 floor
return draw(KEYS[1], ARGV[1])
