-- The second step of the schema: what bounds the branches of one session.

ALTER TABLE calls ADD COLUMN similar BLOB;          -- the room in which what looks like it is found
ALTER TABLE calls ADD COLUMN similar_to TEXT;       -- the newest earlier call in it

ALTER TABLE sessions ADD COLUMN lock_call  TEXT;    -- the call that has the session's lock
ALTER TABLE sessions ADD COLUMN lock_token INTEGER;
ALTER TABLE sessions ADD COLUMN lock_lease INTEGER; -- when its lease ends; that alone frees nothing
ALTER TABLE sessions ADD COLUMN lock_free_from INTEGER;
ALTER TABLE sessions ADD COLUMN frozen     INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN touched_at INTEGER NOT NULL DEFAULT 0; -- by an operator

-- The calls that wait for a session's lock.
CREATE TABLE line (
  tenant      TEXT NOT NULL,
  session_id  TEXT NOT NULL,
  call_id     TEXT NOT NULL,
  came_at     INTEGER NOT NULL,
  place_until INTEGER NOT NULL,        -- unless it asks again
  PRIMARY KEY (tenant, session_id, call_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX line_to_prune ON line (place_until);

-- The calls that are counted in a budget, or that may look like a later one.
CREATE TABLE places (
  room        BLOB NOT NULL,           -- SHA-256
  call_id     TEXT NOT NULL,
  place_until INTEGER NOT NULL,
  PRIMARY KEY (room, call_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX places_in_time ON places (room, place_until);
CREATE INDEX places_to_prune ON places (place_until);

-- What operators have done to a session.
CREATE TABLE session_events (
  seq        INTEGER PRIMARY KEY,
  tenant     TEXT NOT NULL,
  session_id TEXT NOT NULL,
  at         INTEGER NOT NULL,
  event      TEXT NOT NULL,
  actor      TEXT NOT NULL,
  detail     TEXT NOT NULL
) STRICT;
CREATE INDEX events_of_session ON session_events (tenant, session_id);
