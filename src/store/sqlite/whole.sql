-- The eighth step of the schema: since when the ledger knows every call (a file that had calls before has them all),
-- and how far the data has come, which the file of watermarks says, too.

CREATE TABLE ledger (
  whole_since INTEGER NOT NULL,
  epoch       BLOB NOT NULL,           -- random: names this data until a loss of some of it is accepted
  commits     INTEGER NOT NULL,        -- transactions that have changed something
  token       INTEGER NOT NULL,        -- no fencing token above this was given before a loss
  in_file     INTEGER NOT NULL,        -- commits that were in the file when a log could last be begun anew
  former      BLOB NOT NULL            -- the epoch before that loss
) STRICT;
INSERT INTO ledger
  SELECT coalesce(min(created_at), CAST(unixepoch('subsec') * 1000000 AS INTEGER)), randomblob(16), 0, 0, 0,
    zeroblob(16) FROM calls;
