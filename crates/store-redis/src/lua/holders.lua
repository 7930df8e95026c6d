-- Returns the calls that hold these names, in the order of the names: for each call the numbers of its names, and the call.
--
-- KEYS: the names' holders
-- ARGV: 1 prefix
local found, places = {}, {}
for n, holder in ipairs(redis.call('MGET', unpack(KEYS))) do
  if holder and not places[holder] then
    places[holder] = { n }
    found[#found + 1] = { places[holder], redis.call('GET', ARGV[1] .. 'call:' .. holder) }
  elseif holder then
    table.insert(places[holder], n)
  end
end
return found
