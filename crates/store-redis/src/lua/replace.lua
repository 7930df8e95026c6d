-- Writes a change of a call, if its version, attempt and fencing token are still the expected ones. If a request may be
-- sent after it, or names are taken, also only if the call holds its names and no data is missing. If the change is
-- written already, the answer is 'done' again.
--
-- KEYS: as in common; the other lists are those that the call leaves
-- ARGV: 3 is '' if nothing is to be sent after the change and no name is taken; 19 and 20 are '' if intent and arguments
--       stay: they change if a request may be sent, or if they are erased; 21 conditions or '', 22 expected cas, 23 expected fencing token,
--       24 from when on the session's lock is free, 'now' or '', 25 '1' if the call no longer counts as a similar call,
--       26 '1' if the call retakes the lock when no call has it, 27 'PUBLISH', 'SPUBLISH' or '',
--       28 how many of the last keys are names that the call takes, 29 the latest time at which the run may begin or '',
--       30 the similar call, if there are no conditions, or ''
local begins = ARGV[3] ~= ''
-- The marks count here if nothing is sent after the change. Otherwise they are read with the names.
local found = redis.call('MGET', KEYS[2], KEYS[3], KEYS[4])
local stored, earliest = unpack_call(found[1]), found[3]
if not stored then return { 'gone' } end
local again = stored.cas == ARGV[10] and stored.progress == ARGV[11]
if not again and (stored.cas ~= ARGV[22] or stored.token ~= ARGV[23]) then
  return { 'changed', redis.call('GET', KEYS[2]) }
end
local taken = {}
if begins then
  local keys, holders = read_marks_and_names()
  for n, holder in ipairs(holders) do
    if holder ~= ARGV[7] then
      local is_free = not holder or gives_up(holder)
      if not is_free or n <= #keys - tonumber(ARGV[28]) then
        return { 'changed', holder and redis.call('GET', ARGV[1] .. 'call:' .. holder) or '' }
      end
      taken[#taken + 1] = keys[n]
    end
  end
  local lost = lost_by_marks()
  if lost then return lost end
  if not again and is_late(ARGV[29]) then return { 'late', digits(clock()), redis.call('GET', KEYS[2]) } end
else
  read_marks(found[2])
end

local before, was_kept = stored.state, stored.kept == 'k'
if not again then
  if ARGV[21] ~= '' then
    local denied
    local token, other
    denied, token, other = admit(ARGV[21], stored.token)
    if denied then return denied end
    stored.token, stored.other = token, other
  else
    stored.other = ARGV[30]
  end
  stored.cas, stored.progress, stored.result = ARGV[10], ARGV[11], ARGV[12]
  stored.entries = stored.entries .. ARGV[17]
  stored.state, stored.kept = ARGV[14], KEPT
  if ARGV[19] ~= '' then stored.intent, stored.args = ARGV[19], ARGV[20] end
end
move(before)
retain(was_kept, earliest)
for n = 23, first_giver - 1 do redis.call('ZREM', KEYS[n], ARGV[8]) end
-- After everything that depends on the state before: a script that broke off does all of it when it runs again.
if not again then redis.call('SET', KEYS[2], pack_call(stored)) end
take(taken, {})
if not again then tell() end
if ARGV[24] ~= '' then release(stored.token, ARGV[24], ARGV[26] == '1') end
if ARGV[25] == '1' then redis.call('ZREM', SIMILAR, ARGV[7]) end
local writes = again and marks.writes or count()
if ARGV[27] ~= '' then redis.call(ARGV[27], ARGV[1] .. 'endings', ARGV[7]) end
return { 'done', stored.token, writes, stored.other }
