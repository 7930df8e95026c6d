-- Writes a document, if the stored one still has the expected version and state. If it is written already, the answer
-- is 'done' again.
--
-- KEYS: 1 the document, 2 documents by due time, 3 marks, 4 documents by when they may be deleted, 5 counts by state,
--       6 and 7 the list of all documents and of the tenant's, 8 and 9 those of its state, 10 and 11 those of the state
--       before
-- ARGV: 2 gateway, 3 epoch, or '' to write to any data, 4 known writes, 5 digest, 6 position,
--       7 and 8 expected version and state, or '' for none, 9 version, 10 state, 11 its other members but the body,
--       12 body, 13 when it is due or '', 14 from when on it may be deleted or ''
local stored = redis.call('HMGET', KEYS[1], 'version', 'state', 'rest', 'body')
local is_there = true
for n = 1, 4 do is_there = is_there and stored[n] == ARGV[8 + n] end
local is_before = (stored[1] or '') == ARGV[7] and (stored[2] or '') == ARGV[8]
if not is_there and not is_before then return { 'changed', stored } end
read_marks(redis.call('GET', KEYS[3]))
local lost = lost_by_marks()
if lost and ARGV[3] ~= '' then return lost end
if is_there then return { 'done', marks.writes } end

redis.call('HSET', KEYS[1], 'version', ARGV[9], 'state', ARGV[10], 'rest', ARGV[11], 'body', ARGV[12])
for n, score in pairs({ [2] = ARGV[13], [4] = ARGV[14] }) do
  if score == '' then
    redis.call('ZREM', KEYS[n], ARGV[5])
  else
    redis.call('ZADD', KEYS[n], score, ARGV[5])
  end
end
if not stored[1] or ARGV[8] ~= ARGV[10] then
  for n = 10, 11 do redis.call('ZREM', KEYS[n], ARGV[6]) end
  if stored[1] then redis.call('HINCRBY', KEYS[5], ARGV[8], -1) end
  redis.call('HINCRBY', KEYS[5], ARGV[10], 1)
end
for n = 6, 9 do redis.call('ZADD', KEYS[n], 0, ARGV[6]) end
return { 'done', count() }
