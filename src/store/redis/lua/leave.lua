-- Gives up a place in the line, or a token that was drawn for a call that did not begin: it was not handed
-- out, so the one before it is the newest again. A place is not counted: it is forgotten by itself in seconds.
--
-- KEYS and ARGV 2 to 4: as in enter
-- ARGV: 5 call id, 6 '1' if it leaves the line, 7 the token or '', 8 the one before it or ''
local keys = rooms(5)
if ARGV[6] == '1' then
  redis.call('ZREM', keys.line, ARGV[5])
  redis.call('ZREM', keys.alive, ARGV[5])
end
if ARGV[7] == '' or missing() or redis.call('HGET', keys.session, 'token') ~= ARGV[7] then
  return { 'done', written() }
end
if ARGV[8] == '' then
  redis.call('HDEL', keys.session, 'token')
else
  redis.call('HSET', keys.session, 'token', ARGV[8])
end
return { 'done', count() }
