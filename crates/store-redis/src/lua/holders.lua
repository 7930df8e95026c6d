-- Returns the calls that hold these names, in the order of the names: for each call the numbers of its names, and the call.
-- That no call holds them is an answer only if no data is missing.
--
-- KEYS: the names' holders, then marks
-- ARGV: 1 prefix, 2 gateway, 3 epoch, or '' if the gateway does not know one yet, 4 known writes
local found, places = {}, {}
local stored = redis.call('MGET', unpack(KEYS))
for n = 1, #KEYS - 1 do
  local holder = stored[n]
  if holder and not places[holder] then
    places[holder] = { n }
    found[#found + 1] = { places[holder], redis.call('GET', ARGV[1] .. 'call:' .. holder) }
  elseif holder then
    table.insert(places[holder], n)
  end
end
if #found == 0 and ARGV[3] ~= '' then
  read_marks(stored[#KEYS])
  local lost = lost_by_marks()
  if lost then return lost end
end
return { 'held', found }
