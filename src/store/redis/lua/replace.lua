-- Writes a change of a call, if its version, attempt and fencing token are still the expected ones. If a request may be
-- sent after it, or names are taken, also only if the call holds its names and no data is missing. If the change is
-- written already, the answer is 'done' again.
--
-- KEYS: as in common
-- ARGV: 3 is '' if nothing is to be sent after it and no name is taken; 10 expected cas, 11 expected fencing token,
--       12 cas, 13 progress, 14 result, 15 entry, 16 the same for the stream or '', 17 state, 18 its letter, 19 score,
--       20 from when on it may be deleted or '', 21 conditions or '', 22 from when on the session's lock is free, 'now' or
--       '', 23 '1' if it no longer counts as a similar call, 24 'PUBLISH', 'SPUBLISH' or '', 25 '1' if the call
--       retakes the lock when no call has it, 26 how many of the last keys are names that the call takes,
--       27 '1' if a request may be sent after it, then 28 intent and 29 args
local begins = ARGV[3] ~= ''
local stored = unpack_call(redis.call('GET', KEYS[2]))
if not stored then return { 'gone' } end
local again = stored.cas == ARGV[12] and stored.progress == ARGV[13]
if not again and (stored.cas ~= ARGV[10] or stored.token ~= ARGV[11]) then
  return { 'changed', redis.call('GET', KEYS[2]) }
end
local earliest
local taken, giving = {}, gives_up()
if begins then
  local keys, holders = names()
  for n, holder in ipairs(holders) do
    if holder ~= ARGV[7] then
      local call = holder and ARGV[1] .. 'call:' .. holder
      local is_given = not holder or giving[holder] and cas_of(call) == giving[holder].cas
      if not is_given or n <= #keys - tonumber(ARGV[26]) then
        return { 'changed', holder and redis.call('GET', call) or '' }
      end
      taken[#taken + 1] = keys[n]
    end
  end
  read_marks(redis.call('GET', KEYS[3]))
  local why = missing()
  if why then return { 'lost', why } end
else
  local found = redis.call('MGET', KEYS[3], KEYS[4])
  read_marks(found[1])
  earliest = found[2]
end
if ARGV[20] ~= '' and begins then earliest = redis.call('GET', KEYS[4]) end

local before, was_kept = stored.state, stored.kept == 'k'
if not again then
  if ARGV[21] ~= '' then
    local admission, now = cjson.decode(ARGV[21]), clock()
    local denied, seen = denial(rooms(9), admission, now)
    if denied then return denied end
    stored.token, stored.other = enter(rooms(9), admission, now, seen)
  end
  stored.cas, stored.progress, stored.result = ARGV[12], ARGV[13], ARGV[14]
  stored.entries = stored.entries .. ARGV[15]
  stored.state, stored.kept = ARGV[18], ARGV[20] ~= '' and 'k' or '-'
  if ARGV[27] == '1' then stored.intent, stored.args = ARGV[28], ARGV[29] end
end
move(before, ARGV[18], ARGV[19])
retain(was_kept, ARGV[20], earliest)
-- Behind what depends on the state before: a script that broke off does all of it when it is asked again.
if not again then redis.call('SET', KEYS[2], pack_call(stored)) end
take(taken, giving)
if not again then tell(ARGV[7], ARGV[17], ARGV[16]) end
if ARGV[22] ~= '' then release(KEYS[9], ARGV[7], stored.token, ARGV[22], ARGV[25] == '1') end
if ARGV[23] == '1' then redis.call('ZREM', KEYS[13], ARGV[7]) end
local writes = again and written() or count()
if ARGV[24] ~= '' then redis.call(ARGV[24], ARGV[1] .. 'endings', ARGV[7]) end
return { 'done', stored.token, writes, stored.other }
