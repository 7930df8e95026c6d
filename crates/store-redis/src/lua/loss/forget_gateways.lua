-- Takes gateways that are gone out of the marks of a partition, if their count is still the one that was seen. The count
-- becomes their last count in the same partition. So an older state of the partition has the count in one of the two
-- places, or lacks those writes. This is counted as a write of the gateway that runs the script: a gateway that has seen
-- the marks without the gone gateways knows of that write, and notices an older state by it.
--
-- KEYS: 1 and 2 the tokens in the first partition, or again the marks, 3 marks, 4 the newer hash of last counts in this
--       epoch, 5 the older one
-- ARGV: 2 gateway, 3 epoch, 4 known writes, 5 in the first partition: where the highest token of forgotten gateways is
--       kept, or '', then of each gateway its name and its count
read_marks(redis.call('GET', KEYS[3]))
local lost = lost_by_marks()
if lost then return lost end
-- When the newer hash has so many gateways it becomes the older one.
local MOST = 1000

local function move_token(gateway)
  local token = redis.call('HGET', KEYS[1], gateway)
  if not token then return end
  if tonumber(token) > tonumber(redis.call('HGET', KEYS[1], ARGV[5]) or '0') then
    redis.call('HSET', KEYS[1], ARGV[5], token)
  end
  redis.call('HDEL', KEYS[1], gateway)
end

local seen = {}
for n = 6, #ARGV, 2 do
  if ARGV[5] ~= '' then move_token(ARGV[n]) end
  seen[ARGV[n]] = tonumber(ARGV[n + 1])
end
local left, last = { (string.match(marks.text, '^[^\n]*')) }, {}
for gateway, writes in string.gmatch(marks.text, '\n([^\n]*)=(%d+)') do
  if seen[gateway] == tonumber(writes) then
    last[#last + 1] = gateway
    last[#last + 1] = writes
  else
    left[#left + 1] = '\n' .. gateway .. '=' .. writes
  end
end
if #last == 0 then return { 'done', marks.writes } end
if redis.call('HLEN', KEYS[4]) >= MOST then redis.call('RENAME', KEYS[4], KEYS[5]) end
redis.call('HSET', KEYS[4], unpack(last))
-- 400 days.
redis.call('PEXPIRE', KEYS[4], 34560000000)
local text = table.concat(left)
redis.call('SET', KEYS[3], text)
read_marks(text)
return { 'done', count() }
