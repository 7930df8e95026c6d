-- Deletes finished calls whose retention is over, and takes them out of every index and list. One that runs again,
-- or has a later time by now, stays as it is. Nothing is deleted in data that the gateway does not know. Answers how
-- many were deleted.
--
-- KEYS: 1 finished calls by when they may be deleted, 2 failed calls, 3 epoch, 4 everyone's writes, then each call, then
--       each key that leads to one of them, then each list in which some of them stand
-- ARGV: 2 gateway, 3 epoch, 4 known writes, 5 now, 6 how many calls, 7 how many keys, then the id of each call, its
--       position, for each key the number of its call, and for each list the numbers of its calls in one text
local why = missing()
if why then return { 'lost', why } end
local now, calls, holders = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local due, ids, records = {}, {}, {}
for n = 1, calls do
  local id = ARGV[7 + n]
  local until_when = tonumber(redis.call('ZSCORE', KEYS[1], id) or '')
  if until_when and until_when <= now then
    due[n] = true
    ids[#ids + 1] = id
    records[#records + 1] = KEYS[4 + n]
  end
end
if #ids == 0 then return { 'done', 0 } end
for n = 1, holders do
  local call = tonumber(ARGV[7 + 2 * calls + n])
  local holder = KEYS[4 + calls + n]
  if due[call] and redis.call('GET', holder) == ARGV[7 + call] then redis.call('DEL', holder) end
end
for n = 5 + calls + holders, #KEYS do
  local positions = {}
  for call in string.gmatch(ARGV[n + 3 + calls], '%d+') do
    if due[tonumber(call)] then positions[#positions + 1] = ARGV[7 + calls + tonumber(call)] end
  end
  if #positions > 0 then redis.call('ZREM', KEYS[n], unpack(positions)) end
end
redis.call('ZREM', KEYS[2], unpack(ids))
redis.call('DEL', unpack(records))
redis.call('ZREM', KEYS[1], unpack(ids))
return { 'done', #ids }
