-- Gives back what a call has of a session or of a room.
--
-- KEYS: as in enter
-- ARGV: 1 call id, 2 from when on the lock is free, 'now' or '', then '1' for each place that it gives
--       up: 3 line, 4 budget, 5 what looks alike
local keys = rooms(1)
if ARGV[2] ~= '' then release(keys.session, ARGV[1], ARGV[2]) end
if ARGV[3] == '1' then
  redis.call('ZREM', keys.line, ARGV[1])
  redis.call('ZREM', keys.alive, ARGV[1])
end
if ARGV[4] == '1' then redis.call('ZREM', keys.budget, ARGV[1]) end
if ARGV[5] == '1' then redis.call('ZREM', keys.similar, ARGV[1]) end
return 'done'
