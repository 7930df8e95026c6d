-- The entries of an index behind one of its entries, which may be gone by now. In order: by score, then by place.
--
-- KEYS: 1 index
-- ARGV: 1 score of the last entry that was read, '-inf' for none, 2 its place, 3 how many
local score, place = ARGV[1], ARGV[2]

-- Compares bytes, as Redis does: '<=' of Lua follows the server's locale.
local function is_behind(other)
  for at = 1, math.min(#other, #place) do
    local ours, others = string.byte(place, at), string.byte(other, at)
    if ours ~= others then return others > ours end
  end
  return #other > #place
end

local low = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score)
local high = redis.call('ZCOUNT', KEYS[1], '-inf', score)
while low < high do
  local middle = math.floor((low + high) / 2)
  if is_behind(redis.call('ZRANGE', KEYS[1], middle, middle)[1]) then high = middle else low = middle + 1 end
end
return redis.call('ZRANGE', KEYS[1], low, low + ARGV[3] - 1, 'WITHSCORES')
