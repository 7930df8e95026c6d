-- Puts a gateway that was forgotten back into the marks of this partition, with its last count. The last count stays
-- stored, because other gateways may be reading it.
--
-- KEYS: 3 marks (and again as 1 and 2), 4 the newer hash of last counts in this epoch, 5 the older one
-- ARGV: 2 gateway, 3 epoch, 4 known writes
read_marks(redis.call('GET', KEYS[3]))
if marks.to or string.match(marks.text, '^[^\n]*') ~= ARGV[3] then return { 'same' } end
local last = redis.call('HGET', KEYS[4], ARGV[2]) or redis.call('HGET', KEYS[5], ARGV[2])
if last then redis.call('APPEND', KEYS[3], '\n' .. ARGV[2] .. '=' .. last) end
return { 'done' }
