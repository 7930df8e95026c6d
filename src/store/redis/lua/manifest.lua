-- Writes the manifest if it still is the one that was seen. Not counted: it belongs to no gateway.
--
-- KEYS: 1 the manifest
-- ARGV: 1 the manifest that was seen, or '', 2 the next one
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return { 'changed' } end
redis.call('SET', KEYS[1], ARGV[2])
return { 'done' }
