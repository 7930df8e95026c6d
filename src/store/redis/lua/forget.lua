-- Deletes finished calls whose retention is over, and takes them out of every index and list. One that runs again,
-- or has a later time by now, stays as it is. Answers how many were deleted.
--
-- KEYS: 1 finished calls by when they may be deleted, 2 failed calls, then each call, then each key that leads to
--       one of them, then each list in which some of them stand
-- ARGV: 1 now, 2 how many calls, 3 how many keys, then the id of each call, its position, for each key the number of
--       its call, and for each list the numbers of its calls in one text
local now, calls, holders = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local due, ids, records = {}, {}, {}
for n = 1, calls do
  local id = ARGV[3 + n]
  local until_when = tonumber(redis.call('ZSCORE', KEYS[1], id) or '')
  if until_when and until_when <= now then
    due[n] = true
    ids[#ids + 1] = id
    records[#records + 1] = KEYS[2 + n]
  end
end
if #ids == 0 then return { 'done', 0 } end
for n = 1, holders do
  local call = tonumber(ARGV[3 + 2 * calls + n])
  local holder = KEYS[2 + calls + n]
  if due[call] and redis.call('GET', holder) == ARGV[3 + call] then redis.call('DEL', holder) end
end
for n = 3 + calls + holders, #KEYS do
  local positions = {}
  for call in string.gmatch(ARGV[n + 1 + calls], '%d+') do
    if due[tonumber(call)] then positions[#positions + 1] = ARGV[3 + calls + tonumber(call)] end
  end
  if #positions > 0 then redis.call('ZREM', KEYS[n], unpack(positions)) end
end
redis.call('ZREM', KEYS[2], unpack(ids))
redis.call('DEL', unpack(records))
redis.call('ZREM', KEYS[1], unpack(ids))
return { 'done', #ids }
