-- The calls that hold these names, in the order of the names: the places of its names, and its fields.
--
-- KEYS: the names' holders
-- ARGV: 1 prefix
local found, places = {}, {}
for n = 1, #KEYS do
  local holder = redis.call('GET', KEYS[n])
  if holder and not places[holder] then
    places[holder] = { n }
    found[#found + 1] = { places[holder], fields(ARGV[1] .. 'call:' .. holder) }
  elseif holder then
    table.insert(places[holder], n)
  end
end
return found
