-- All tables of a file. Times are microseconds since 1970 in UTC, unless said otherwise; ids, names and digests are bytes.
-- Only columns that queries use are columns. Everything else is in values of the codec (store/codec.rs), last in their row.

-- The changing part of a call, and the columns by which the store finds it. `seq` numbers calls in the order of their claims.
CREATE TABLE calls (
  seq          INTEGER PRIMARY KEY,
  state        INTEGER NOT NULL,        -- its place in core::ledger::STATES: 0 running, 1 succeeded, 2 failed, 3 unknown, …
  due_at       INTEGER,                 -- running: when its lease ends; unknown: its next check, NULL if none was planned yet;
                                        -- proposed: until when it may be decided; approved: since when
  tool         TEXT,                    -- set while it is running, unknown, proposed or approved
  owner        BLOB,                    -- the instance id of the gateway that runs it
  retain_until INTEGER,                 -- from when on it may be deleted, in seconds, rounded up
  fencing      INTEGER,
  similar_to   BLOB,                    -- the newest earlier call that looked the same
  progress     BLOB NOT NULL,
  history      BLOB NOT NULL,           -- its newest entries, one after the other
  result       BLOB                     -- the result, or the body of a rejection
) STRICT;
CREATE INDEX calls_running  ON calls (due_at) WHERE state = 0;
CREATE INDEX calls_to_check ON calls (tool, due_at) WHERE state = 3;
CREATE INDEX calls_waiting  ON calls (due_at) WHERE state IN (7, 8);
CREATE INDEX calls_failed   ON calls (state) WHERE state = 2;
CREATE INDEX calls_to_prune ON calls (retain_until) WHERE retain_until IS NOT NULL;

-- Older parts of long histories, so that a change of a call writes a short row.
CREATE TABLE older (
  seq     INTEGER NOT NULL,
  part    INTEGER NOT NULL,             -- from 1 on, the newest has the highest number
  entries BLOB NOT NULL,                -- readable without the other parts
  PRIMARY KEY (seq, part)
) STRICT, WITHOUT ROWID;

-- The duplicates of calls, in a table of their own, so that counting one does not write the result again.
CREATE TABLE duplicates (
  seq        INTEGER PRIMARY KEY,
  duplicates BLOB NOT NULL
) STRICT;

-- The intents of calls, in a table of their own, so that a change of a call does not write its arguments again.
CREATE TABLE intents (
  seq    INTEGER PRIMARY KEY,
  intent BLOB NOT NULL,
  args   BLOB NOT NULL
) STRICT;

CREATE TABLE ids (
  call_id BLOB PRIMARY KEY,
  seq     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The claims: at most one call holds a name. A call past its window may have lost some of its names.
CREATE TABLE names (
  lookup BLOB PRIMARY KEY,
  seq    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Calls by the properties that the ledger is searched for: tool, session, user, trace, saga, states with few calls, and the
-- key of calls that no name made of their key finds.
CREATE TABLE lists (
  list       INTEGER NOT NULL,          -- the first 8 bytes of a digest of tenant, property and value
  created_at INTEGER NOT NULL,          -- microseconds since the beginning of 2026, which are short numbers for years
  seq        INTEGER NOT NULL,
  PRIMARY KEY (list, created_at, seq)
) STRICT, WITHOUT ROWID;

-- The tools that each tenant has called. The lists of these tools have all calls of the tenant.
CREATE TABLE tools (
  tenant TEXT NOT NULL,
  tool   TEXT NOT NULL,
  PRIMARY KEY (tenant, tool)
) STRICT, WITHOUT ROWID;

-- Sessions: the newest token, the lock, and whether it is frozen. `session` is a digest of tenant and session id.
CREATE TABLE sessions (
  session        BLOB PRIMARY KEY,
  token          INTEGER NOT NULL,           -- the newest fencing token
  lock_call      BLOB,                       -- the call that has the session's lock
  lock_token     INTEGER,
  lock_lease     INTEGER,                    -- when the lease of that call ends; this alone does not free the lock
  lock_free_from INTEGER,                    -- from then on the lock is free; NULL: not by time
  frozen         INTEGER NOT NULL DEFAULT 0,
  touched_at     INTEGER NOT NULL DEFAULT 0  -- the newest act of an operator
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_token ON sessions (token);

-- The calls that wait for a session's lock.
CREATE TABLE line (
  session     BLOB NOT NULL,
  call_id     BLOB NOT NULL,
  came_at     INTEGER NOT NULL,
  place_until INTEGER NOT NULL,         -- the place ends then, unless the call asks again
  PRIMARY KEY (session, call_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX line_to_prune ON line (place_until);

-- The calls that count for a budget, and those with which later calls are compared (near-duplicates).
CREATE TABLE places (
  room        BLOB NOT NULL,            -- a digest that names the group
  call_id     BLOB NOT NULL,
  place_until INTEGER NOT NULL,
  PRIMARY KEY (room, call_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX places_in_time ON places (room, place_until);
CREATE INDEX places_to_prune ON places (place_until);

-- The acts of operators on a session.
CREATE TABLE session_events (
  seq     INTEGER PRIMARY KEY,
  session BLOB NOT NULL,
  at      INTEGER NOT NULL,
  event   TEXT NOT NULL,
  actor   TEXT NOT NULL,
  detail  TEXT NOT NULL
) STRICT;
CREATE INDEX events_of_session ON session_events (session);

CREATE TABLE paused_tools (
  tool   TEXT PRIMARY KEY,
  at     INTEGER NOT NULL,
  event  TEXT NOT NULL,
  actor  TEXT NOT NULL,
  detail TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The acts of operators on a tool.
CREATE TABLE tool_events (
  seq    INTEGER PRIMARY KEY,
  tool   TEXT NOT NULL,
  at     INTEGER NOT NULL,
  event  TEXT NOT NULL,
  actor  TEXT NOT NULL,
  detail TEXT NOT NULL
) STRICT;
CREATE INDEX events_of_tool ON tool_events (tool, seq);

-- Everything that is kept beside the calls: sagas, anomalies, recipes, the secret.
CREATE TABLE documents (
  digest       BLOB PRIMARY KEY,        -- of kind, tenant and id
  kind         TEXT NOT NULL,
  tenant       TEXT NOT NULL,
  id           TEXT NOT NULL,
  version      INTEGER NOT NULL,
  state        TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  due_at       INTEGER,
  retain_until INTEGER,
  body         BLOB NOT NULL
) STRICT;
CREATE INDEX documents_all       ON documents (kind, created_at, digest);
CREATE INDEX documents_state     ON documents (kind, state, created_at, digest);
CREATE INDEX documents_of        ON documents (kind, tenant, created_at, digest);
CREATE INDEX documents_of_state  ON documents (kind, tenant, state, created_at, digest);
CREATE INDEX documents_due       ON documents (kind, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX documents_to_prune  ON documents (retain_until) WHERE retain_until IS NOT NULL;

-- The events of the newest days in the order in which they were written, for GET /v1/events.
CREATE TABLE feed (
  number  INTEGER PRIMARY KEY,          -- rises; the newest row is never deleted
  seq     INTEGER NOT NULL,             -- the call
  version INTEGER NOT NULL,             -- of the call; the event is its entry of this number, counted from 1
  at      INTEGER NOT NULL              -- seconds since 1970
) STRICT;

-- Since when the ledger has every call, and the counts that are compared with the file of watermarks.
CREATE TABLE ledger (
  whole_since INTEGER NOT NULL,
  epoch       BLOB NOT NULL,            -- random; names this data until a loss is accepted
  commits     INTEGER NOT NULL,         -- transactions that have changed something
  token       INTEGER NOT NULL,         -- no higher fencing token was given out before the last accepted loss
  in_file     INTEGER NOT NULL,         -- commits that were in the file when the log could last begin anew
  former      BLOB NOT NULL             -- the epoch before the last accepted loss
) STRICT;
INSERT INTO ledger
  VALUES (CAST(unixepoch('subsec') * 1000000 AS INTEGER), randomblob(16), 0, 0, 0, zeroblob(16));
