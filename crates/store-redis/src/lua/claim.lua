-- Claims all names of a call, if no other call holds one of them and the conditions hold. Writes the record with its first
-- ledger entry, the index of running calls, the lists, and what follows from the conditions. If the same attempt has
-- claimed already, the answer is 'done' again.
--
-- KEYS: as in common
-- ARGV: 21 conditions or '', 22 tenant, or '' if it is listed already, 23 the latest time at which the run may begin or ''
local keys, holders = read_marks_and_names()
for _, holder in ipairs(holders) do
  if holder == ARGV[7] then
    local stored = unpack_call(redis.call('GET', KEYS[2]))
    if not stored or stored.cas ~= ARGV[10] then return { 'held', redis.call('GET', KEYS[2]) } end
    local lost = lost_by_marks()
    if lost then return lost end
    return { 'done', stored.token, marks.writes, stored.other }
  end
  if holder and not gives_up(holder) then return { 'held', redis.call('GET', ARGV[1] .. 'call:' .. holder) } end
end
local lost = lost_by_marks()
if lost then return lost end
if is_late(ARGV[23]) then return { 'late', digits(clock()) } end
local denied, token, other = nil, '', ''
if ARGV[21] ~= '' then
  denied, token, other = admit(ARGV[21], '')
  if denied then return denied end
end

-- One command writes the record and takes the names.
take(keys, { KEYS[2], new_call(token, other, ARGV[17]) })
move(nil)
if KEPT == 'k' then retain(false, redis.call('GET', KEYS[4])) end
enlist(ARGV[22])
tell()
return { 'done', token, count(), other }
