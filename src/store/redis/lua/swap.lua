-- Writes the manifest if it still is what was seen. Not counted: it belongs to no gateway.
--
-- KEYS: 1 what is written
-- ARGV: 1 what was seen, or '', 2 the next one
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return { 'changed' } end
redis.call('SET', KEYS[1], ARGV[2])
return { 'done' }
