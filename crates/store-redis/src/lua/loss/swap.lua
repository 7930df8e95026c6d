-- Writes the manifest, if it is still the one that was seen. Not counted: the manifest belongs to no gateway.
--
-- KEYS: 1 the manifest
-- ARGV: 1 the one that was seen, or '' for none, 2 the new one
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return { 'changed' } end
redis.call('SET', KEYS[1], ARGV[2])
return { 'done' }
