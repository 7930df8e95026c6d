-- Terms whose keys are in another slot than the call: compares them and writes what follows from them.
--
-- KEYS: 1 session, 2 line, 3 who is alive in it, 4 budget, 5 what looks alike
-- ARGV: 1 terms
local terms, now = cjson.decode(ARGV[1]), clock()
local bar = barred(rooms(1), terms, now)
if bar then return bar end
local token, other = enter(rooms(1), terms, now)
return { 'done', token, other }
