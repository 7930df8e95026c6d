-- Adds to the duplicates of a call, if the call exists. They are one string: the count in eight bytes, then the newest
-- duplicates, each after its length in four bytes.
--
-- KEYS: 1 call, 2 its duplicates
-- ARGV: 1 how many, 2 how many of the newest are listed, 3 and more: the newest ones, newest first
if redis.call('EXISTS', KEYS[1]) == 0 then return { 'gone' } end
local stored = redis.call('GET', KEYS[2])
local count, at = tonumber(ARGV[1]), 9
if stored then count = count + struct.unpack('>I8', stored) end
local last = {}
for n = 3, #ARGV do last[#last + 1] = struct.pack('>I4', #ARGV[n]) .. ARGV[n] end
while stored and at <= #stored and #last < tonumber(ARGV[2]) do
  local length = struct.unpack('>I4', stored, at)
  last[#last + 1] = string.sub(stored, at, at + 3 + length)
  at = at + 4 + length
end
redis.call('SET', KEYS[2], struct.pack('>I8', count) .. table.concat(last))
return { 'done' }
