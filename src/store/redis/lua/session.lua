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

-- Sessions that rest for a week are forgotten, but not while a call holds them.
local function remember(session)
  local held = redis.call('HMGET', session, 'lock', 'frozen', 'lock_from')
  if (held[1] and not held[3]) or held[2] then
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
local function take(room, call, window_us, now)
  redis.call('ZREMRANGEBYSCORE', room, '-inf', digits(now))
  redis.call('ZADD', room, 'NX', digits(now + window_us), call)
  redis.call('PEXPIRE', room, math.ceil(window_us / 1000))
end

-- The holder or waiter before this call; then the call has a place in the line, if it waits and there is room.
local function busy(keys, admission, now)
  -- A call that was not heard of is not waited for.
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', keys.alive, '-inf', digits(now))) do
    redis.call('ZREM', keys.alive, gone)
    redis.call('ZREM', keys.line, gone)
  end
  local lock = redis.call('HMGET', keys.session, 'lock', 'lock_token', 'lock_lease', 'lock_from')
  local free_from = tonumber(lock[4] or '')
  local is_held = lock[1] and lock[1] ~= admission.call and not (free_from and free_from <= now)
  local place = redis.call('ZRANK', keys.line, admission.call)
  local length = redis.call('ZCARD', keys.line)
  local ahead = place or length
  if lock[1] == admission.call or (not is_held and ahead == 0) then return nil end
  if not is_held then lock = { '', '', '', '' } end
  local behind = lock[1]
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
  return { 'denied', 'busy', behind, lock[1], lock[2], lock[3], lock[4] or '' }
end

-- The first of the conditions that does not hold. The lock comes last: no call waits for it in vain.
local function denial(keys, admission, now)
  if admission.token then
    local stored = redis.call('HMGET', keys.session, 'token', 'frozen')
    if stored[2] then return { 'denied', 'frozen' } end
    if admission.token ~= 'next' then
      local token, newest = tonumber(admission.token), tonumber(stored[1] or '0')
      if token < newest then return { 'denied', 'stale' } end
      -- A newer one was given out only before a loss of data that was accepted.
      if token == 0 or token > math.max(newest, admission.explained) then return { 'denied', 'not_given' } end
    end
  end
  -- What is answered by an earlier call costs nothing.
  if admission.similar and admission.similar.refuses then
    local other = newest(keys.similar, admission.call, now)
    if other and other ~= admission.similar.confirmed then return { 'denied', 'similar', other } end
  end
  if admission.budget then
    local counts = '(' .. digits(now)
    local place = tonumber(redis.call('ZSCORE', keys.budget, admission.call) or '')
    local spent = redis.call('ZCOUNT', keys.budget, counts, '+inf')
    if not (place and place > now) and spent >= admission.budget.max then
      -- The place whose end makes room.
      local frees = redis.call('ZRANGE', keys.budget, counts, '+inf', 'BYSCORE',
        'LIMIT', spent - admission.budget.max, 1, 'WITHSCORES')
      return { 'denied', 'spent', frees[2] }
    end
  end
  if admission.lock then return busy(keys, admission, now) end
  return nil
end

-- Writes what follows from conditions that hold: the token, and the newest call that looks the same or ''.
-- The token is max(previous + 1, this server's clock in microseconds, floor): it rises even if the key,
-- or the clock, was set back.
local function enter(keys, admission, now)
  local token, other = '', ''
  if admission.token then
    token = admission.token
    if token == 'next' then
      local previous = tonumber(redis.call('HGET', keys.session, 'token') or '0')
      token = digits(math.max(previous + 1, now, tonumber(admission.floor)))
    end
    redis.call('HSET', keys.session, 'token', token)
    if admission.lock then
      redis.call('HSET', keys.session, 'lock', admission.call, 'lock_token', token, 'lock_lease', admission.lease)
      redis.call('HDEL', keys.session, 'lock_from')
      redis.call('ZREM', keys.line, admission.call)
      redis.call('ZREM', keys.alive, admission.call)
    end
    remember(keys.session)
  end
  if admission.budget then take(keys.budget, admission.call, admission.budget.window_us, now) end
  if admission.similar then
    other = newest(keys.similar, admission.call, now) or ''
    take(keys.similar, admission.call, admission.similar.window_us, now)
    -- Only the newest counts; the others are there because it may give up its place.
    redis.call('ZREMRANGEBYRANK', keys.similar, 0, -17)
  end
  return token, other
end

-- Gives the lock back to a call that the store has forgotten with it, unless a newer one has it: for good, or
-- until a time.
local function hold(session, call, token, lease, from)
  local lock = redis.call('HMGET', session, 'lock_token', 'token')
  if token == '' or tonumber(lock[1] or '0') >= tonumber(token) then return end
  redis.call('HSET', session, 'lock', call, 'lock_token', token, 'lock_lease', lease)
  if from == '' then
    redis.call('HDEL', session, 'lock_from')
  else
    redis.call('HSET', session, 'lock_from', from)
  end
  if tonumber(lock[2] or '0') < tonumber(token) then redis.call('HSET', session, 'token', token) end
  remember(session)
end

-- Gives the session's lock free if this run of the call has it: 'now', or from a time on. If no call has it
-- and it is to be retaken, it is the call's until then.
local function release(session, call, token, from, retakes)
  local lock = redis.call('HMGET', session, 'lock', 'lock_token')
  if not lock[1] and retakes and from ~= 'now' then
    redis.call('HSET', session, 'lock', call, 'lock_token', token, 'lock_lease', from)
  elseif lock[1] ~= call or lock[2] ~= token then
    return
  end
  if from == 'now' then
    redis.call('HDEL', session, 'lock', 'lock_token', 'lock_lease', 'lock_from')
  else
    redis.call('HSET', session, 'lock_from', from)
  end
  remember(session)
end
