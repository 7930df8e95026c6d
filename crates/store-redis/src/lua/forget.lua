-- Deletes finished calls past their retention, and removes them from every index and list. A call that runs again, or has
-- a later time by now, stays as it is. Deletes nothing from data that the gateway does not know. Returns how many calls
-- were deleted.
--
-- KEYS: 1 finished calls by when they may be deleted, 2 failed calls, 3 marks, 4 the earliest time at which a call may be
--       deleted, then the calls, then the duplicates of each call, then the holders of all their names, then the lists
--       that have some of them
-- ARGV: 2 gateway, 3 epoch, 4 known writes, 5 now, 6 number of calls, 7 number of names, then the ids of the calls, then
--       their positions, then for each name the number of its call, then for each list the numbers of its calls, with
--       spaces between them
local AT_ONCE = 1000

local function delete(keys)
  for from = 1, #keys, AT_ONCE do
    redis.call('DEL', unpack(keys, from, math.min(from + AT_ONCE - 1, #keys)))
  end
end

read_marks(redis.call('GET', KEYS[3]))
local lost = lost_by_marks()
if lost then return lost end
local now, calls, names = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local due, places, keys = {}, {}, {}
local scores = calls > 0 and redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 8 + calls, 7 + 2 * calls)) or {}
for n = 1, calls do
  local until_when = tonumber(scores[n] or '')
  if until_when and until_when <= now then
    due[n] = true
    places[#places + 1] = ARGV[7 + calls + n]
    keys[#keys + 1] = KEYS[4 + n]
    keys[#keys + 1] = KEYS[4 + calls + n]
  end
end
for from = 1, names, AT_ONCE do
  local last = math.min(from + AT_ONCE - 1, names)
  local holders = redis.call('MGET', unpack(KEYS, 4 + 2 * calls + from, 4 + 2 * calls + last))
  for n = from, last do
    local call = tonumber(ARGV[7 + 2 * calls + n])
    if due[call] and holders[n - from + 1] == ARGV[7 + call] then keys[#keys + 1] = KEYS[4 + 2 * calls + n] end
  end
end
for n = 5 + 2 * calls + names, #KEYS do
  local positions = {}
  for call in string.gmatch(ARGV[n + 3], '%d+') do
    if due[tonumber(call)] then positions[#positions + 1] = ARGV[7 + calls + tonumber(call)] end
  end
  if #positions > 0 then redis.call('ZREM', KEYS[n], unpack(positions)) end
end
if #places > 0 then
  redis.call('ZREM', KEYS[2], unpack(places))
  delete(keys)
  redis.call('ZREM', KEYS[1], unpack(places))
end
local earliest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if earliest then redis.call('SET', KEYS[4], earliest) else redis.call('DEL', KEYS[4]) end
return { 'done', #places }
