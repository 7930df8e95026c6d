-- Adds to the duplicates of a call, if it is there.
--
-- KEYS: 1 call
-- ARGV: 1 how many, 2 how many of the newest are listed, 3 and more: the newest ones, newest first
if redis.call('HEXISTS', KEYS[1], 'cas') == 0 then return { 'gone' } end
redis.call('HINCRBY', KEYS[1], 'duplicates', ARGV[1])
local last = {}
for n = 3, #ARGV do last[#last + 1] = ARGV[n] end
for line in string.gmatch(redis.call('HGET', KEYS[1], 'arrived') or '', '[^\n]+') do last[#last + 1] = line end
local most = math.min(#last, tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'arrived', table.concat(last, '\n', 1, most))
return { 'done' }
