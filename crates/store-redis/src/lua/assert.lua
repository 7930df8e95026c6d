-- Puts back a record that a gateway remembers and the store may have lost. A stored record of the same or a newer
-- version stays. Sets each of the call's names that is free; takes a name from another call only if that call gives it
-- up. May run again after it broke off, or after a conflict: the result is the same as after one run.
--
-- KEYS: as in common; the first of the other lists is that of the calls with the same key
-- ARGV: 21 fencing token, 22 similar call or '', 23 lease of the session's lock, if the call had it, or '',
--       24 from when on that is free or '', 25 tenant
-- Answers 'there' or 'put', or 'conflict' and the calls that hold a name.
local stored = unpack_call(redis.call('GET', KEYS[2]))
local is_there = stored and struct.unpack('>I8', stored.cas) >= (struct.unpack('>I8', ARGV[10]))

if not is_there then
  move(stored and stored.state)
  enlist(ARGV[25])
  retain(true, redis.call('GET', KEYS[4]))
  if ARGV[23] ~= '' then hold(ARGV[21], ARGV[23], ARGV[24]) end
  -- With this write the record exists: everything but its names is written.
  redis.call('SET', KEYS[2], new_call(ARGV[21], ARGV[22], (stored and stored.entries or '') .. ARGV[17]))
  tell()
end
local answer, is_named, free = { 'conflict' }, {}, {}
local keys, holders = read_marks_and_names()
for n, holder in ipairs(holders) do
  if holder ~= ARGV[7] then
    if not holder or gives_up(holder) then
      free[#free + 1] = keys[n]
    elseif not is_named[holder] then
      is_named[holder] = true
      answer[#answer + 1] = holder
    end
  end
end
take(free, {})
if #answer > 1 then return answer end
return { is_there and 'there' or 'put' }
