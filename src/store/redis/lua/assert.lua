-- Puts back a record that a gateway remembers and the store may have lost. A stored record of the same or a newer
-- version stays. Sets each of the call's names that is free; a name that another call holds is taken only if that call
-- gives it up. May run again after it broke off, or after a conflict: the result is the same as after one run.
--
-- KEYS: as in common; the first of the lists is that of the calls with the same key
-- ARGV: 10 version, 11 cas, 12 intent, 13 args, 14 progress, 15 fencing token, 16 result, 17 state, 18 its letter, 19 score,
--       20 from when on it may be deleted or '', 21 entry, 22 the same for the stream or '', 23 similar call or '',
--       24 lease of the session's lock, if the call had it, or '', 25 from when on that is free or '', 26 tenant
-- Answers 'there' or 'put', or 'conflict' and the calls that hold a name.
local stored = unpack_call(redis.call('GET', KEYS[2]))
local is_there = stored and struct.unpack('>I8', stored.cas) >= tonumber(ARGV[10])

if not is_there then
  move(stored and stored.state, ARGV[18], ARGV[19])
  enlist(ARGV[26])
  retain(true, ARGV[20], redis.call('GET', KEYS[4]))
  if ARGV[24] ~= '' then hold(KEYS[9], ARGV[7], ARGV[15], ARGV[24], ARGV[25]) end
  -- With this write the record exists: everything but its names is written.
  redis.call('SET', KEYS[2], pack_call({ cas = ARGV[11], token = ARGV[15], other = ARGV[23], progress = ARGV[14],
    intent = ARGV[12], entries = (stored and stored.entries or '') .. ARGV[21], args = ARGV[13], result = ARGV[16],
    state = ARGV[18], kept = ARGV[20] ~= '' and 'k' or '-' }))
  tell(ARGV[7], ARGV[17], ARGV[22])
end
local answer, is_named, free, giving = { 'conflict' }, {}, {}, gives_up()
local keys, holders = names()
for n, holder in ipairs(holders) do
  if holder ~= ARGV[7] then
    if not holder or giving[holder] and cas_of(ARGV[1] .. 'call:' .. holder) == giving[holder].cas then
      free[#free + 1] = keys[n]
    elseif not is_named[holder] then
      is_named[holder] = true
      answer[#answer + 1] = holder
    end
  end
end
take(free, giving)
if #answer > 1 then return answer end
return { is_there and 'there' or 'put' }
