-- A gateway that was forgotten while it was away goes on from its last count, as this partition has it. That is kept: others
-- may just be reading it.
--
-- KEYS: 3 marks (and again as 1 and 2), 4 the last counts in this epoch, 5 those before
-- ARGV: 2 gateway, 3 epoch, 4 known writes
read_marks(redis.call('GET', KEYS[3]))
if marks.to or string.match(marks.text, '^[^\n]*') ~= ARGV[3] then return { 'same' } end
local last = redis.call('HGET', KEYS[4], ARGV[2]) or redis.call('HGET', KEYS[5], ARGV[2])
if last then redis.call('APPEND', KEYS[3], '\n' .. ARGV[2] .. '=' .. last) end
return { 'done' }
