-- All tables of a file. Times are microseconds since 1970 in UTC; ids, names and digests are bytes. What the store does
-- not look at is in values of the codec (store/codec.rs), which stand last in their row.

-- What changes of a call, and what the store finds it by. `seq` numbers calls in the order in which they were claimed.
CREATE TABLE calls (
  seq          INTEGER PRIMARY KEY,
  state        INTEGER NOT NULL,        -- its place in core::ledger::STATES: 0 running, 1 succeeded, 2 failed, 3 unknown, …
  due_at       INTEGER,                 -- running: when its lease ends; unknown: when it is checked next, if it ever was
  tool         TEXT,                    -- while it is running or unknown
  owner        BLOB,                    -- the gateway that runs it
  retain_until INTEGER,                 -- from when on it may be deleted, in seconds, rounded up
  fencing      INTEGER,
  similar_to   BLOB,                    -- the newest earlier call that looked the same
  progress     BLOB NOT NULL,
  history      BLOB NOT NULL,           -- its newest entries, one after the other
  result       BLOB                     -- the result, or the body of a rejection
) STRICT;
CREATE INDEX calls_running  ON calls (due_at) WHERE state = 0;
CREATE INDEX calls_to_check ON calls (tool, due_at) WHERE state = 3;
CREATE INDEX calls_failed   ON calls (state) WHERE state = 2;
CREATE INDEX calls_to_prune ON calls (retain_until) WHERE retain_until IS NOT NULL;

-- Older parts of long histories: so a change of a call writes only a short one.
CREATE TABLE older (
  seq     INTEGER NOT NULL,
  part    INTEGER NOT NULL,             -- from 1 on, the newest has the highest number
  entries BLOB NOT NULL,                -- readable without the other parts
  PRIMARY KEY (seq, part)
) STRICT, WITHOUT ROWID;

-- The duplicates of those calls that have any: so to count one does not write the result once more.
CREATE TABLE duplicates (
  seq        INTEGER PRIMARY KEY,
  duplicates BLOB NOT NULL
) STRICT;

-- What was asked for, apart from what changes: so a change of the call does not write its arguments once more.
CREATE TABLE intents (
  seq    INTEGER PRIMARY KEY,
  intent BLOB NOT NULL,
  args   BLOB NOT NULL
) STRICT;

CREATE TABLE ids (
  call_id BLOB PRIMARY KEY,
  seq     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- This table is the claim: one call per name. A call that is past its window may have lost some of its names.
CREATE TABLE names (
  lookup BLOB PRIMARY KEY,
  seq    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Calls by what the ledger is asked for: tool, session, user, trace, saga, and the states in which few calls are.
CREATE TABLE lists (
  list       INTEGER NOT NULL,          -- the first 8 bytes of a digest of tenant, property and value
  created_at INTEGER NOT NULL,          -- since the beginning of 2026: these are the shortest numbers for years
  seq        INTEGER NOT NULL,
  PRIMARY KEY (list, created_at, seq)
) STRICT, WITHOUT ROWID;

-- The tools of each tenant's calls. All calls of a tenant are the lists of its tools.
CREATE TABLE tools (
  tenant TEXT NOT NULL,
  tool   TEXT NOT NULL,
  PRIMARY KEY (tenant, tool)
) STRICT, WITHOUT ROWID;

-- What bounds the calls of one session. `session` is a digest of its tenant and its id.
CREATE TABLE sessions (
  session        BLOB PRIMARY KEY,
  token          INTEGER NOT NULL,           -- the newest fencing token
  lock_call      BLOB,                       -- the call that has the session's lock
  lock_token     INTEGER,
  lock_lease     INTEGER,                    -- when its lease ends; that alone frees nothing
  lock_free_from INTEGER,
  frozen         INTEGER NOT NULL DEFAULT 0,
  touched_at     INTEGER NOT NULL DEFAULT 0  -- by an operator
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_token ON sessions (token);

-- The calls that wait for a session's lock.
CREATE TABLE line (
  session     BLOB NOT NULL,
  call_id     BLOB NOT NULL,
  came_at     INTEGER NOT NULL,
  place_until INTEGER NOT NULL,         -- unless it asks again
  PRIMARY KEY (session, call_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX line_to_prune ON line (place_until);

-- The calls that are counted in a budget, or that may look like a later one.
CREATE TABLE places (
  room        BLOB NOT NULL,            -- a digest
  call_id     BLOB NOT NULL,
  place_until INTEGER NOT NULL,
  PRIMARY KEY (room, call_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX places_in_time ON places (room, place_until);
CREATE INDEX places_to_prune ON places (place_until);

-- What operators have done to a session.
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

-- What is kept beside the calls.
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

-- Since when the ledger knows every call, and how far the data has come, which the file of watermarks says, too.
CREATE TABLE ledger (
  whole_since INTEGER NOT NULL,
  epoch       BLOB NOT NULL,            -- random: names this data until a loss of some of it is accepted
  commits     INTEGER NOT NULL,         -- transactions that have changed something
  token       INTEGER NOT NULL,         -- no fencing token above this was given before a loss
  in_file     INTEGER NOT NULL,         -- commits that were in the file when a log could last be begun anew
  former      BLOB NOT NULL             -- the epoch before that loss
) STRICT;
INSERT INTO ledger
  VALUES (CAST(unixepoch('subsec') * 1000000 AS INTEGER), randomblob(16), 0, 0, 0, zeroblob(16));
