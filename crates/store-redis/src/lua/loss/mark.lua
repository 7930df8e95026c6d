-- Writes a partition's epoch, if it is still the one that was seen. Not counted: an epoch belongs to no gateway.
--
-- KEYS: 1 marks
-- ARGV: 1 the epoch that was seen, '' for none or '*' for any, 2 the next one
local epoch, counts = string.match(redis.call('GET', KEYS[1]) or '', '^([^\n]*)(.*)$')
if ARGV[1] ~= '*' and epoch ~= ARGV[1] then return { 'changed' } end
redis.call('SET', KEYS[1], ARGV[2] .. counts)
return { 'done' }
