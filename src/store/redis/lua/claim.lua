-- Claims all names of a call, if no other call holds one of them and the conditions hold. Writes the record with its first
-- ledger entry, the index of running calls, the lists, and what follows from the conditions. If the same attempt has
-- claimed already, the answer is 'done' again.
--
-- KEYS: as in common
-- ARGV: 10 cas, 11 intent, 12 args, 13 progress, 14 entry, 15 the same for the stream or '', 16 score, 17 conditions or '',
--       18 tenant, or '' if it is listed already, 19 result, 20 state, 21 its letter, 22 from when on it may be deleted
--       or ''
local giving, keys, holders = gives_up(), names()
for n, holder in ipairs(holders) do
  local call = holder and ARGV[1] .. 'call:' .. holder
  if holder == ARGV[7] then
    local stored = unpack_call(redis.call('GET', KEYS[2]))
    if not stored or stored.cas ~= ARGV[10] then return { 'held', redis.call('GET', KEYS[2]) } end
    read_marks(redis.call('GET', KEYS[3]))
    local why = missing()
    if why then return { 'lost', why } end
    return { 'done', stored.token, written(), stored.other }
  end
  if holder and (not giving[holder] or cas_of(call) ~= giving[holder].cas) then
    return { 'held', redis.call('GET', call) }
  end
end
read_marks(redis.call('GET', KEYS[3]))
local why = missing()
if why then return { 'lost', why } end
local token, other = '', ''
if ARGV[17] ~= '' then
  local admission, now = cjson.decode(ARGV[17]), clock()
  local denied, seen = denial(rooms(9), admission, now)
  if denied then return denied end
  token, other = enter(rooms(9), admission, now, seen)
end

take(keys, giving)
redis.call('SET', KEYS[2], pack_call({ cas = ARGV[10], token = token, other = other, progress = ARGV[13], intent = ARGV[11],
  entries = ARGV[14], args = ARGV[12], result = ARGV[19], state = ARGV[21], kept = ARGV[22] ~= '' and 'k' or '-' }))
move(nil, ARGV[21], ARGV[16])
if ARGV[22] ~= '' then retain(false, ARGV[22], redis.call('GET', KEYS[4])) end
enlist(ARGV[18])
tell(ARGV[7], ARGV[20], ARGV[15])
return { 'done', token, count(), other }
