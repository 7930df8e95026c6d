-- The fifth step of the schema: paused tools.

CREATE TABLE paused_tools (
  tool   TEXT PRIMARY KEY,
  at     INTEGER NOT NULL,
  event  TEXT NOT NULL,
  actor  TEXT NOT NULL,
  detail TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What operators have done to a tool.
CREATE TABLE tool_events (
  seq    INTEGER PRIMARY KEY,
  tool   TEXT NOT NULL,
  at     INTEGER NOT NULL,
  event  TEXT NOT NULL,
  actor  TEXT NOT NULL,
  detail TEXT NOT NULL
) STRICT;
CREATE INDEX events_of_tool ON tool_events (tool, seq);
