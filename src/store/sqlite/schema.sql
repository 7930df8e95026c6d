-- The first version of the schema. A later one is a further file, run after this one.
-- Times are microseconds since 1970 in UTC. Identities of attempts and gateways are 32 hex digits.

CREATE TABLE calls (
  seq            INTEGER PRIMARY KEY,
  call_id        TEXT NOT NULL UNIQUE,
  lookup         BLOB NOT NULL,           -- SHA-256 of (tenant, tool, key)
  names          BLOB NOT NULL DEFAULT x'', -- what else it was claimed under: 32 bytes each
  aliases        TEXT NOT NULL DEFAULT '', -- further keys that it answers, as JSON
  recipe         BLOB NOT NULL DEFAULT x'00000000000000000000000000000000', -- how names and fingerprint were made
  tenant         TEXT NOT NULL,
  tool           TEXT NOT NULL,
  key            TEXT NOT NULL,
  key_source     TEXT NOT NULL,
  fingerprint    BLOB NOT NULL,
  user_id        TEXT NOT NULL,
  session_id     TEXT NOT NULL,
  trace_id       TEXT NOT NULL,
  made_by        TEXT NOT NULL DEFAULT '',  -- the name of the token with which it was made
  client_ids     TEXT NOT NULL DEFAULT '',  -- what its client calls the request, as JSON
  args           BLOB NOT NULL,
  created_at     INTEGER NOT NULL,
  version        INTEGER NOT NULL,
  state          TEXT NOT NULL,
  attempt_id     TEXT NOT NULL,
  owner          TEXT NOT NULL,
  attempt_number INTEGER NOT NULL,
  run_started_at INTEGER NOT NULL,
  lease_until    INTEGER NOT NULL,
  attempts       INTEGER NOT NULL,
  doubted        INTEGER NOT NULL,
  fencing        INTEGER,
  latency_ms     INTEGER,
  result         BLOB,                    -- the result, or the body of a rejection
  failure        TEXT,                    -- the kind of failure
  why            TEXT,
  tool_status    INTEGER,
  retry_after_ms INTEGER,
  updated_at     INTEGER NOT NULL,
  expires_at     INTEGER,
  retain_until   INTEGER
) STRICT;

-- This table is the claim: one call per name. A call that is past its window may have lost some of its names.
CREATE TABLE names (
  lookup BLOB PRIMARY KEY,
  seq    INTEGER NOT NULL                 -- of the call
) STRICT, WITHOUT ROWID;

CREATE INDEX calls_running ON calls (lease_until) WHERE state = 'running';
CREATE INDEX calls_unknown ON calls (tool) WHERE state = 'unknown';
CREATE INDEX calls_to_prune ON calls (retain_until) WHERE retain_until IS NOT NULL;

CREATE TABLE events (
  call_id    TEXT NOT NULL,
  version    INTEGER NOT NULL,            -- of the record that the event made
  at         INTEGER NOT NULL,
  event      TEXT NOT NULL,
  attempt_id TEXT,
  outcome    TEXT,
  actor      TEXT NOT NULL,           -- whose doing it was
  detail     TEXT NOT NULL,
  PRIMARY KEY (call_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
  tenant     TEXT NOT NULL,
  session_id TEXT NOT NULL,
  token      INTEGER NOT NULL,            -- the newest fencing token
  PRIMARY KEY (tenant, session_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_token ON sessions (token);
