-- The eighth step of the schema: since when the ledger knows every call. A file that had calls before has them all.

CREATE TABLE ledger (
  whole_since INTEGER NOT NULL
) STRICT;
INSERT INTO ledger
  SELECT coalesce(min(created_at), CAST(unixepoch('subsec') * 1000000 AS INTEGER)) FROM calls;
