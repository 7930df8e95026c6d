-- Takes gateways that are gone out of the counters of a partition, those whose count is still the one that was seen.
-- In the first partition it begins with writing down their last counts in all of them. Counted as a write of the one
-- who does it, so that a gateway that sees the counters without them knows of it.
--
-- KEYS: 1 and 2 the tokens in the first partition, or again the writes, 3 epoch, 4 everyone's writes, then, in the first
--       partition, the last counts of each gateway in this epoch
-- ARGV: 2 gateway, 3 epoch, 4 known writes, 5 in the first partition: where the highest token of forgotten gateways is
--       kept, or '', then of each gateway its name, its count, and in the first partition its counts in all of them
local why = missing()
if why then return { 'lost', why } end
local is_first = ARGV[5] ~= ''
local taken = is_first

-- What was written down before by who did not come to its end is not made smaller. Kept for 400 days.
local function write_down(key, counts)
  local last, before = cjson.decode(counts), redis.call('GET', key)
  if before then
    for n, count in ipairs(cjson.decode(before)) do last[n] = math.max(last[n] or 0, count) end
  end
  redis.call('SET', key, cjson.encode(last), 'PX', 34560000000)
end

local function move_token(gateway)
  local token = redis.call('HGET', KEYS[1], gateway)
  if not token then return end
  if tonumber(token) > tonumber(redis.call('HGET', KEYS[1], ARGV[5]) or '0') then
    redis.call('HSET', KEYS[1], ARGV[5], token)
  end
  redis.call('HDEL', KEYS[1], gateway)
end

for n = 6, #ARGV, 3 do
  if is_first then
    write_down(KEYS[4 + (n - 3) / 3], ARGV[n + 2])
    move_token(ARGV[n])
  end
  if redis.call('HGET', KEYS[4], ARGV[n]) == ARGV[n + 1] then
    redis.call('HDEL', KEYS[4], ARGV[n])
    taken = true
  end
end
return { 'done', taken and count() or written() }
