-- Sessions, budgets and what looks alike, for the scripts that begin a call or end one. `admission` are as
-- the gateway has made them: here they are compared, and what follows from them is written.
--
-- conditions: call, token ('next' or a number), floor, explained, lock, lease, line_us, budget { max, window_us },
--        similar { window_us, refuses, confirmed }; what is not there is not asked for. Numbers beyond
--        what a double prints in full are texts.

-- The keys of a session and of the rooms of a call; what is not asked for is never touched.
local function rooms(first)
  return {
    session = KEYS[first],
    line = KEYS[first + 1],
    alive = KEYS[first + 2],
    budget = KEYS[first + 3],
    similar = KEYS[first + 4],
  }
end

local function digits(number) return string.format('%.0f', number) end

-- This server's clock, in microseconds.
local function clock()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000000 + tonumber(now[2])
end

-- A session as it is; what it has not is nil.
local function look_at(session)
  local found = redis.call('HMGET', session, 'token', 'frozen', 'lock', 'lock_token', 'lock_lease', 'lock_from')
  return { token = found[1] or nil, frozen = found[2] or nil, lock = found[3] or nil, lock_token = found[4] or nil,
    lock_lease = found[5] or nil, lock_from = found[6] or nil }
end

-- Sessions that rest for a week are forgotten, but not while a call holds them.
local function remember(session, seen)
  if (seen.lock and not seen.lock_from) or seen.frozen then
    redis.call('PERSIST', session)
  else
    redis.call('PEXPIRE', session, 604800000)
  end
end

-- The newest other call of a room whose time there is not over.
local function newest(room, call, now)
  local newest = redis.call('ZRANGE', room, '+inf', '(' .. digits(now), 'BYSCORE', 'REV', 'LIMIT', 0, 2)
  if newest[1] == call then return newest[2] end
  return newest[1]
end

-- Takes a place in a room for a while, unless the call has one.
local function take_place(room, call, window_us, now)
  redis.call('ZREMRANGEBYSCORE', room, '-inf', digits(now))
  redis.call('ZADD', room, 'NX', digits(now + window_us), call)
  redis.call('PEXPIRE', room, math.ceil(window_us / 1000))
end

-- The holder or waiter before this call; then the call has a place in the line, if it waits and there is room.
local function busy(keys, admission, now, seen)
  local length, place = redis.call('ZCARD', keys.line), nil
  if length > 0 then
    -- A call that was not heard of is not waited for.
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', keys.alive, '-inf', digits(now))) do
      redis.call('ZREM', keys.alive, gone)
      length = length - redis.call('ZREM', keys.line, gone)
    end
    place = redis.call('ZRANK', keys.line, admission.call) or nil
  end
  seen.waits = place ~= nil
  local free_from = tonumber(seen.lock_from or '')
  local is_held = seen.lock and seen.lock ~= admission.call and not (free_from and free_from <= now)
  local ahead = place or length
  if seen.lock == admission.call or (not is_held and ahead == 0) then return nil end
  local lock = is_held and seen or {}
  local behind = lock.lock or ''
  if ahead > 0 then behind = redis.call('ZRANGE', keys.line, ahead - 1, ahead - 1)[1] end
  if not admission.line_us or (not place and length >= admission.line_length) then
    behind = ''
  else
    if not place then
      local last = redis.call('ZRANGE', keys.line, -1, -1, 'WITHSCORES')[2]
      redis.call('ZADD', keys.line, digits(math.max(now, (tonumber(last or '') or 0) + 1)), admission.call)
    end
    redis.call('ZADD', keys.alive, digits(now + admission.line_us), admission.call)
    redis.call('PEXPIRE', keys.line, math.ceil(admission.line_us / 500))
    redis.call('PEXPIRE', keys.alive, math.ceil(admission.line_us / 500))
  end
  return { 'denied', 'busy', behind, lock.lock or '', lock.lock_token or '', lock.lock_lease or '', lock.lock_from or '' }
end

-- The first of the conditions that does not hold. The lock comes last: no call waits for it in vain. If all hold, what
-- was seen.
local function denial(keys, admission, now)
  local seen = look_at(keys.session)
  if seen.frozen then return { 'denied', 'frozen' } end
  if admission.token ~= 'next' then
    local token, newest = tonumber(admission.token), tonumber(seen.token or '0')
    if token < newest then return { 'denied', 'stale' } end
    -- A newer one was given out only before a loss of data that was accepted.
    if token == 0 or token > math.max(newest, admission.explained) then return { 'denied', 'not_given' } end
  end
  if admission.similar then seen.similar = newest(keys.similar, admission.call, now) end
  -- What is answered by an earlier call costs nothing.
  if admission.similar and admission.similar.refuses then
    local other = seen.similar
    if other and other ~= admission.similar.confirmed then return { 'denied', 'similar', other } end
  end
  if admission.budget then
    local counts = '(' .. digits(now)
    local spent = redis.call('ZCOUNT', keys.budget, counts, '+inf')
    if spent >= admission.budget.max then
      local place = tonumber(redis.call('ZSCORE', keys.budget, admission.call) or '')
      if not (place and place > now) then
        -- The place whose end makes room.
        local frees = redis.call('ZRANGE', keys.budget, counts, '+inf', 'BYSCORE',
          'LIMIT', spent - admission.budget.max, 1, 'WITHSCORES')
        return { 'denied', 'spent', frees[2] }
      end
    end
  end
  local denied = admission.lock and busy(keys, admission, now, seen)
  return denied or nil, seen
end

-- Writes what follows from conditions that hold: the token, and the newest call that looks the same or ''.
-- The token is max(previous + 1, this server's clock in microseconds, floor): it rises even if the key,
-- or the clock, was set back.
local function enter(keys, admission, now, seen)
  local token = admission.token
  if token == 'next' then
    local previous = tonumber(seen.token or '0')
    token = digits(math.max(previous + 1, now, tonumber(admission.floor)))
  end
  if admission.lock then
    redis.call('HSET', keys.session, 'token', token, 'lock', admission.call, 'lock_token', token, 'lock_lease', admission.lease)
    if seen.lock_from then redis.call('HDEL', keys.session, 'lock_from') end
    if seen.waits then
      redis.call('ZREM', keys.line, admission.call)
      redis.call('ZREM', keys.alive, admission.call)
    end
    seen.lock, seen.lock_from = admission.call, nil
  else
    redis.call('HSET', keys.session, 'token', token)
  end
  remember(keys.session, seen)
  if admission.budget then
    take_place(keys.budget, admission.call, admission.budget.window_us, now)
  end
  if admission.similar then
    take_place(keys.similar, admission.call, admission.similar.window_us, now)
    -- Only the newest counts; the others are there because it may give up its place.
    redis.call('ZREMRANGEBYRANK', keys.similar, 0, -17)
  end
  return token, seen.similar or ''
end

-- Gives the lock back to a call that the store has forgotten with it, unless a newer one has it: for good, or
-- until a time.
local function hold(session, call, token, lease, from)
  local seen = look_at(session)
  if token == '' or tonumber(seen.lock_token or '0') >= tonumber(token) then return end
  redis.call('HSET', session, 'lock', call, 'lock_token', token, 'lock_lease', lease)
  seen.lock, seen.lock_from = call, from ~= '' and from or nil
  if from == '' then
    redis.call('HDEL', session, 'lock_from')
  else
    redis.call('HSET', session, 'lock_from', from)
  end
  if tonumber(seen.token or '0') < tonumber(token) then redis.call('HSET', session, 'token', token) end
  remember(session, seen)
end

-- Gives the session's lock free if this run of the call has it: 'now', or from a time on. If no call has it
-- and it is to be retaken, it is the call's until then.
local function release(session, call, token, from, retakes)
  local seen = look_at(session)
  if not seen.lock and retakes and from ~= 'now' then
    redis.call('HSET', session, 'lock', call, 'lock_token', token, 'lock_lease', from)
  elseif seen.lock ~= call or seen.lock_token ~= token then
    return
  end
  if from == 'now' then
    redis.call('HDEL', session, 'lock', 'lock_token', 'lock_lease', 'lock_from')
    seen.lock = nil
  else
    redis.call('HSET', session, 'lock_from', from)
    seen.lock, seen.lock_from = call, from
  end
  remember(session, seen)
end
