-- The marks of a partition: the epoch of its data, and how many writes each gateway has made. They are one string: the
-- epoch in the first line, then a line for each gateway, GATEWAY=WRITES. Each count has 15 digits, so that it can be
-- overwritten in its place.
--
-- KEYS: 3 marks
-- ARGV: 2 gateway, 3 epoch, 4 known writes

local marks = {}

-- Reads the marks and this gateway's count from their text, which is false if there are none.
local function read_marks(text)
  marks.text = text or ''
  local _, to = string.find(marks.text, '\n' .. ARGV[2] .. '=', 1, true)
  marks.to = to
  marks.writes = to and tonumber(string.sub(marks.text, to + 1, to + 15)) or 0
end

-- Compares the marks that were read with what the gateway knows. Returns the script's answer if data is missing: nothing
-- that leads to an effect may be written. 'epoch': this is other data than the gateway knows. 'writes': the gateway knows of
-- more writes of its own than are counted here, so some are lost.
local function lost_by_marks()
  if (string.match(marks.text, '^[^\n]*')) ~= ARGV[3] then return { 'lost', 'epoch' } end
  if marks.writes < tonumber(ARGV[4]) then return { 'lost', 'writes' } end
  return nil
end

-- Counts a write of this gateway. Does not count if writes are missing: a growing count would hide the loss.
local function count()
  if marks.writes < tonumber(ARGV[4]) then return marks.writes end
  marks.writes = marks.writes + 1
  local digits = string.format('%015.0f', marks.writes)
  if marks.to then
    redis.call('SETRANGE', KEYS[3], marks.to, digits)
  else
    redis.call('APPEND', KEYS[3], '\n' .. ARGV[2] .. '=' .. digits)
  end
  return marks.writes
end
