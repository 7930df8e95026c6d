-- Sessions, budgets and similar calls, for the scripts that begin a call or end one. The gateway makes the conditions
-- (`admission`). Scripts compare them, and write what follows from them.
--
-- admission: token ('next', 'none' or a number), floor, latest, explained, lock, lease, line_us, line_length,
--       budget { max, window_us }, similar { window_us, refuses, confirmed }. A missing member is no condition. Numbers
--       that a double does not print in full are texts.

-- As in common. An operator's act on a session uses none of them.
local SESSION, LINE, WAITERS, BUDGET, SIMILAR = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local CALL = ARGV[7]

local function digits(number) return string.format('%.0f', number) end

-- This server's clock, in microseconds.
local function clock()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000000 + tonumber(now[2])
end

-- Whether this server's clock is past the latest time at which a run may begin; '' for none. The gateway that asks goes by a
-- clock that was set back.
local function is_late(latest) return latest ~= '' and clock() > tonumber(latest) end

-- Reads a session. Missing members are nil.
local function look_at(session)
  local found = redis.call('HMGET', session, 'token', 'frozen', 'lock', 'lock_token', 'lock_lease', 'lock_from')
  return { token = found[1] or nil, frozen = found[2] or nil, lock = found[3] or nil, lock_token = found[4] or nil,
    lock_lease = found[5] or nil, lock_from = found[6] or nil }
end

-- A session that is idle for a week is forgotten, unless it is frozen or a call holds its lock.
local function remember(session, seen)
  if (seen.lock and not seen.lock_from) or seen.frozen then
    redis.call('PERSIST', session)
  else
    redis.call('PEXPIRE', session, 604800000)
  end
end

-- The newest other similar call whose place has not ended.
local function newest_similar(now)
  local newest = redis.call('ZRANGE', SIMILAR, '+inf', '(' .. digits(now), 'BYSCORE', 'REV', 'LIMIT', 0, 2)
  if newest[1] == CALL then return newest[2] end
  return newest[1]
end

-- Takes a place in a group until the window ends, unless the call has one.
local function take_place(group, window_us, now)
  redis.call('ZREMRANGEBYSCORE', group, '-inf', digits(now))
  redis.call('ZADD', group, 'NX', digits(now + window_us), CALL)
  redis.call('PEXPIRE', group, math.ceil(window_us / 1000))
end

-- Denies the lock if another call holds it or is ahead in the line; nil: the call may have it. If the call may wait and
-- the line has room, it gets a place in the line or keeps its place.
local function busy(admission, now, seen)
  local length, place = redis.call('ZCARD', LINE), nil
  if length > 0 then
    -- Remove waiters that have not asked again in time.
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', WAITERS, '-inf', digits(now))) do
      redis.call('ZREM', WAITERS, gone)
      length = length - redis.call('ZREM', LINE, gone)
    end
    place = redis.call('ZRANK', LINE, CALL) or nil
  end
  seen.waits = place ~= nil
  local free_from = tonumber(seen.lock_from or '')
  local is_held = seen.lock and seen.lock ~= CALL and not (free_from and free_from <= now)
  local ahead = place or length
  if seen.lock == CALL or (not is_held and ahead == 0) then return nil end
  local lock = is_held and seen or {}
  local behind = lock.lock or ''
  if ahead > 0 then behind = redis.call('ZRANGE', LINE, ahead - 1, ahead - 1)[1] end
  if not admission.line_us or (not place and length >= admission.line_length) then
    behind = ''
  else
    if not place then
      local last = redis.call('ZRANGE', LINE, -1, -1, 'WITHSCORES')[2]
      redis.call('ZADD', LINE, digits(math.max(now, (tonumber(last or '') or 0) + 1)), CALL)
    end
    redis.call('ZADD', WAITERS, digits(now + admission.line_us), CALL)
    redis.call('PEXPIRE', LINE, math.ceil(admission.line_us / 500))
    redis.call('PEXPIRE', WAITERS, math.ceil(admission.line_us / 500))
  end
  return { 'denied', 'busy', behind, lock.lock or '', lock.lock_token or '', lock.lock_lease or '', lock.lock_from or '' }
end

-- Returns the first condition that does not hold; or nil and the session as it was read. The lock comes last, so that no
-- call waits for it that another condition refuses anyway.
local function denial(admission, now)
  local seen = look_at(SESSION)
  if seen.frozen then return { 'denied', 'frozen' } end
  if admission.token ~= 'next' and admission.token ~= 'none' then
    local token, newest = tonumber(admission.token), tonumber(seen.token or '0')
    if token < newest then return { 'denied', 'stale' } end
    -- A token above the newest one can only have been given out before an accepted loss of data (`explained`).
    if token == 0 or token > math.max(newest, admission.explained) then return { 'denied', 'not_given' } end
  end
  if admission.similar then seen.similar = newest_similar(now) end
  -- Before the budget: a call that an earlier one answers does not count for it.
  if admission.similar and admission.similar.refuses then
    local other = seen.similar
    if other and other ~= admission.similar.confirmed then return { 'denied', 'similar', other } end
  end
  if admission.budget then
    local counts = '(' .. digits(now)
    local spent = redis.call('ZCOUNT', BUDGET, counts, '+inf')
    if spent >= admission.budget.max then
      local place = tonumber(redis.call('ZSCORE', BUDGET, CALL) or '')
      if not (place and place > now) then
        -- When the place ends whose end makes room.
        local frees = redis.call('ZRANGE', BUDGET, counts, '+inf', 'BYSCORE',
          'LIMIT', spent - admission.budget.max, 1, 'WITHSCORES')
        return { 'denied', 'spent', frees[2] }
      end
    end
  end
  local denied = admission.lock and busy(admission, now, seen)
  return denied or nil, seen
end

-- Writes what follows from conditions that hold: token, lock and places. Returns the token, and the newest similar call or
-- ''. A new token is max(previous + 1, this server's clock in microseconds, floor): it rises even if the session or the
-- clock was set back. A clock beyond `latest` is a fault that must not drive tokens ahead for ever: it does not count.
local function enter(admission, now, seen, own)
  local token = admission.token
  if token == 'none' then token = own end
  if token == 'next' then
    local previous = tonumber(seen.token or '0')
    local clock = now <= tonumber(admission.latest) and now or 0
    token = digits(math.max(previous + 1, clock, tonumber(admission.floor)))
  end
  if admission.lock then
    redis.call('HSET', SESSION, 'token', token, 'lock', CALL, 'lock_token', token, 'lock_lease', admission.lease)
    if seen.lock_from then redis.call('HDEL', SESSION, 'lock_from') end
    if seen.waits then
      redis.call('ZREM', LINE, CALL)
      redis.call('ZREM', WAITERS, CALL)
    end
    seen.lock, seen.lock_from = CALL, nil
  elseif admission.token ~= 'none' then
    redis.call('HSET', SESSION, 'token', token)
  end
  if admission.token ~= 'none' then remember(SESSION, seen) end
  if admission.budget then take_place(BUDGET, admission.budget.window_us, now) end
  if admission.similar then
    take_place(SIMILAR, admission.similar.window_us, now)
    -- Only the newest call counts. Some older ones stay, because the newest may give up its place.
    redis.call('ZREMRANGEBYRANK', SIMILAR, 0, -17)
  end
  return token, seen.similar or ''
end

-- Compares the conditions, and writes what follows if all of them hold. Returns the denial; or nil, the token, and the
-- newest similar call or ''. `own`: the token that the call has; it keeps that one if none is drawn.
local function admit(conditions, own)
  local admission, now = cjson.decode(conditions), clock()
  local denied, seen = denial(admission, now)
  if denied then return denied end
  return nil, enter(admission, now, seen, own)
end

-- Gives the lock back to a call that is put back after a loss, unless a newer call has the lock. `from`: from when on the
-- lock is free, or '' for never.
local function hold(token, lease, from)
  local seen = look_at(SESSION)
  if token == '' or tonumber(seen.lock_token or '0') >= tonumber(token) then return end
  redis.call('HSET', SESSION, 'lock', CALL, 'lock_token', token, 'lock_lease', lease)
  seen.lock, seen.lock_from = CALL, from ~= '' and from or nil
  if from == '' then
    redis.call('HDEL', SESSION, 'lock_from')
  else
    redis.call('HSET', SESSION, 'lock_from', from)
  end
  if tonumber(seen.token or '0') < tonumber(token) then redis.call('HSET', SESSION, 'token', token) end
  remember(SESSION, seen)
end

-- Frees the session's lock if this run of the call has it: 'now', or from a time on. If no call has it and `retakes` is
-- set, the call takes it until that time.
local function release(token, from, retakes)
  local seen = look_at(SESSION)
  if not seen.lock and retakes and from ~= 'now' then
    redis.call('HSET', SESSION, 'lock', CALL, 'lock_token', token, 'lock_lease', from)
  elseif seen.lock ~= CALL or seen.lock_token ~= token then
    return
  end
  if from == 'now' then
    redis.call('HDEL', SESSION, 'lock', 'lock_token', 'lock_lease', 'lock_from')
    seen.lock = nil
  else
    redis.call('HSET', SESSION, 'lock_from', from)
    seen.lock, seen.lock_from = CALL, from
  end
  remember(SESSION, seen)
end
