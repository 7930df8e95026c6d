-- Gives up a place in the line, or a token that was drawn for a call that did not begin: nobody was given
-- it, so the one before it is the newest again.
--
-- KEYS: as in enter
-- ARGV: 1 call id, 2 '1' if it leaves the line, 3 the token or '', 4 the one before it or ''
local keys = rooms(1)
if ARGV[2] == '1' then
  redis.call('ZREM', keys.line, ARGV[1])
  redis.call('ZREM', keys.alive, ARGV[1])
end
if ARGV[3] ~= '' and redis.call('HGET', keys.session, 'token') == ARGV[3] then
  if ARGV[4] == '' then
    redis.call('HDEL', keys.session, 'token')
  else
    redis.call('HSET', keys.session, 'token', ARGV[4])
  end
end
return 'done'
