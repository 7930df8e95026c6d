-- An operator's act on a session: frees its lock from one run of a call, freezes it or thaws it. Writes an entry about
-- the act, unless the session was in that state already. Counted, so that its loss is noticed.
--
-- KEYS: 1 session, 2 its events, 3 marks
-- ARGV: 2 gateway, 3 epoch, 4 known writes, 5 'unlock', 'freeze' or 'thaw', 6 entry,
--       7 and 8 the call that has the lock, and its token
read_marks(redis.call('GET', KEYS[3]))
local lost = lost_by_marks()
if lost then return lost end
local session = look_at(KEYS[1])
if ARGV[5] == 'unlock' then
  if session.lock ~= ARGV[7] or session.lock_token ~= ARGV[8] then return { 'same', marks.writes } end
  redis.call('HDEL', KEYS[1], 'lock', 'lock_token', 'lock_lease', 'lock_from')
  session.lock = nil
elseif ARGV[5] == 'freeze' then
  if session.frozen then return { 'same', marks.writes } end
  redis.call('HSET', KEYS[1], 'frozen', '1')
  session.frozen = '1'
else
  if not session.frozen then return { 'same', marks.writes } end
  redis.call('HDEL', KEYS[1], 'frozen')
  session.frozen = nil
end
redis.call('LPUSH', KEYS[2], ARGV[6])
redis.call('LTRIM', KEYS[2], 0, 99)
-- As long as a finished call is kept by default.
redis.call('PEXPIRE', KEYS[2], 2592000000)
remember(KEYS[1], session)
return { 'done', count() }
