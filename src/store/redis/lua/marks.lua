-- The marks of a partition: which run of data this is (the epoch), and how many writes each gateway has made. One text,
-- with the epoch in its first line, then a line for each gateway: GATEWAY=WRITES. Each count has 15 digits, so that it
-- is changed in its place.
--
-- KEYS: 3 marks
-- ARGV: 2 gateway, 3 epoch, 4 known writes

local marks = {}

-- The marks as they are in the store, or as a script has read them.
local function read_marks(text)
  marks.text = text or ''
  local _, to = string.find(marks.text, '\n' .. ARGV[2] .. '=', 1, true)
  marks.to = to
  marks.writes = to and tonumber(string.sub(marks.text, to + 1, to + 15)) or 0
end

local function written() return marks.writes end

-- Why nothing that leads to an effect may be written: this is not the data that the gateway knows.
-- A gateway that knows of more writes than there are has lost some.
local function missing()
  if (string.match(marks.text, '^[^\n]*')) ~= ARGV[3] then return 'epoch' end
  if marks.writes < tonumber(ARGV[4]) then return 'writes' end
  return nil
end

-- Counts a write of this gateway, unless it knows of more than there are: that must not heal itself.
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
