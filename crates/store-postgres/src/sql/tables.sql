-- All tables of an installation, in one schema of its own. Times are microseconds since 1970, unless said otherwise; ids, lookup
-- keys, sessions and groups are 16 bytes: uuid. Only columns that queries use are columns; the rest is in values of the codec.

-- The versions of this layout, each with the time at which it was made. A schema without this table is not ours.
CREATE TABLE oncegate_versions (
  version integer PRIMARY KEY,
  made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Which data this is. A gateway that remembers another epoch has lost what it wrote there.
CREATE TABLE ledger (
  one         boolean PRIMARY KEY DEFAULT true CHECK (one),
  epoch       uuid   NOT NULL,
  follows     uuid[] NOT NULL,               -- earlier epochs whose loss an operator has accepted, the newest last
  lost        text   NOT NULL DEFAULT '',    -- what a gateway has found missing; closes the store for all gateways
  reason      text   NOT NULL DEFAULT '',    -- why an operator began this epoch
  token       bigint NOT NULL DEFAULT 0,     -- the highest fencing token before this epoch
  whole_since bigint NOT NULL
);

-- The beats of gateways, about one a second. The write-ahead log is one order: a beat that is there proves that every earlier
-- commit is there. Claims and outcomes do not update it: a row that all of them update would become slow.
CREATE TABLE gateways (
  gateway uuid PRIMARY KEY,
  beat    bigint NOT NULL,
  token   bigint NOT NULL,                   -- no higher fencing token was given out by this gateway
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);

-- The claims: at most one call holds a name.
CREATE TABLE names (
  lookup  uuid PRIMARY KEY,
  call_id uuid NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- What hardly changes of a call. A list is the calls of a tenant with a common property: its number is a digest.
CREATE TABLE calls (
  call_id    uuid   PRIMARY KEY,
  created_at bigint NOT NULL,
  by_tool    bigint NOT NULL,
  by_trace   bigint NOT NULL,
  by_user    bigint,
  by_saga    bigint,
  by_key     bigint,                         -- only of calls that no name made of their key finds
  session    uuid   NOT NULL,
  fencing    bigint,
  intent     bytea  NOT NULL,
  args       bytea  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX calls_of_tool    ON calls (by_tool, created_at);
CREATE INDEX calls_of_trace   ON calls (by_trace, created_at);
CREATE INDEX calls_of_user    ON calls (by_user, created_at) WHERE by_user IS NOT NULL;
CREATE INDEX calls_of_saga    ON calls (by_saga, created_at) WHERE by_saga IS NOT NULL;
CREATE INDEX calls_of_key     ON calls (by_key, created_at) WHERE by_key IS NOT NULL;
CREATE INDEX calls_of_session ON calls (session, created_at);
CREATE INDEX calls_tokens     ON calls (session, fencing) WHERE fencing IS NOT NULL;

-- What changes of a call. A table of its own, so that an outcome rewrites few entries of indexes.
CREATE TABLE states (
  call_id      uuid     PRIMARY KEY,
  created_at   bigint   NOT NULL,
  version      bigint   NOT NULL,
  attempt      uuid     NOT NULL,
  fencing      bigint,
  state        smallint NOT NULL,            -- its place in rules::ledger::STATES: 0 running, 2 failed, 3 unknown, …
  due_at       bigint,                       -- running: when its lease ends; unknown: its next check, NULL if none was planned yet;
                                             -- proposed: until when it may be decided; approved: since when
  tool         text,                         -- set while it is running, unknown, proposed or approved
  by_state     bigint,                       -- the list of its state, if that has one
  retain_until bigint,                       -- from when on it may be deleted
  similar_to   uuid,
  progress     bytea    NOT NULL,
  history      bytea    NOT NULL,            -- its newest entries, one after the other
  result       bytea
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX states_running  ON states (due_at) WHERE state = 0;
CREATE INDEX states_to_check ON states (tool, due_at) WHERE state = 3;
CREATE INDEX states_waiting  ON states (due_at) WHERE state IN (7, 8);
CREATE INDEX states_ended    ON states (call_id) WHERE state IN (2, 3);
CREATE INDEX states_listed   ON states (by_state, created_at) WHERE by_state IS NOT NULL;
CREATE INDEX states_to_prune ON states (retain_until) WHERE retain_until IS NOT NULL;

-- Older parts of long histories, so that a change of a call writes a short row.
CREATE TABLE older (
  call_id uuid    NOT NULL,
  part    integer NOT NULL,                  -- from 1 on, the newest has the highest number
  entries bytea   NOT NULL,
  PRIMARY KEY (call_id, part)
);

CREATE TABLE duplicates (
  call_id uuid    PRIMARY KEY,
  count   bigint  NOT NULL,
  last    bytea[] NOT NULL                   -- the newest, newest first
) WITH (fillfactor = 70);

-- What is kept of each call that has a state, but its names and the older parts of its history.
CREATE VIEW whole AS
  SELECT c.intent, c.args, s.progress, s.result, s.fencing, s.similar_to, s.call_id, d.count, d.last, s.history,
      s.created_at, s.state, s.due_at, s.tool, s.retain_until
    FROM states s LEFT JOIN calls c USING (call_id) LEFT JOIN duplicates d USING (call_id);

-- The tools that each tenant has called. The lists of these tools have all calls of the tenant.
CREATE TABLE tools (
  tenant text NOT NULL,
  tool   text NOT NULL,
  PRIMARY KEY (tenant, tool)
);

-- Only sessions with a lock, a freeze, an act, or a deleted newest call. The newest token is the higher one of this and the
-- highest of the session's calls: no row that all calls of a session update.
CREATE TABLE sessions (
  session        uuid    PRIMARY KEY,
  token          bigint  NOT NULL,
  lock_call      uuid,
  lock_token     bigint,
  lock_lease     bigint,                     -- when the lease of that call ends; this alone does not free the lock
  lock_free_from bigint,                     -- from then on the lock is free; NULL: not by time
  frozen         boolean NOT NULL DEFAULT false,
  touched_at     bigint  NOT NULL DEFAULT 0  -- the newest act of an operator
) WITH (fillfactor = 70);

-- The calls that wait for a session's lock.
CREATE TABLE line (
  session     uuid   NOT NULL,
  call_id     uuid   NOT NULL,
  came_at     bigint NOT NULL,
  place_until bigint NOT NULL,               -- the place ends then, unless the call asks again
  PRIMARY KEY (session, call_id)
);
CREATE INDEX line_to_prune ON line (place_until);

-- The calls that count for a budget, and those with which later calls are compared (near-duplicates).
CREATE TABLE places (
  room        uuid   NOT NULL,
  call_id     uuid   NOT NULL,
  place_until bigint NOT NULL,
  PRIMARY KEY (room, call_id)
);
CREATE INDEX places_in_time  ON places (room, place_until);
CREATE INDEX places_to_prune ON places (place_until);

CREATE TABLE paused_tools (
  tool   text   PRIMARY KEY,
  at     bigint NOT NULL,
  event  text   NOT NULL,
  actor  text   NOT NULL,
  detail text   NOT NULL
);

-- The acts of operators on a session or a tool: `about` is the session's key or a digest of the tool's name.
CREATE TABLE acts (
  seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  about  uuid   NOT NULL,
  at     bigint NOT NULL,
  event  text   NOT NULL,
  actor  text   NOT NULL,
  detail text   NOT NULL
);
CREATE INDEX acts_about ON acts (about, seq);

-- Everything that is kept beside the calls: sagas, anomalies, key schemes, the secret.
CREATE TABLE documents (
  digest       uuid   PRIMARY KEY,           -- of kind, tenant and id
  kind         text   NOT NULL,
  tenant       bytea  NOT NULL,
  id           bytea  NOT NULL,
  version      bigint NOT NULL,
  state        text   NOT NULL,
  created_at   bigint NOT NULL,
  due_at       bigint,
  retain_until bigint,
  body         bytea  NOT NULL
);
CREATE INDEX documents_all      ON documents (kind, created_at, digest);
CREATE INDEX documents_state    ON documents (kind, state, created_at, digest);
CREATE INDEX documents_of       ON documents (kind, tenant, created_at, digest);
CREATE INDEX documents_due      ON documents (kind, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX documents_to_prune ON documents (retain_until) WHERE retain_until IS NOT NULL;

-- Refuses deletions by a person's hand: a call that is gone could run again. Cleanup says that it is cleanup.
CREATE FUNCTION only_cleanup_deletes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('oncegate.prune', true) IS DISTINCT FROM 'on' THEN
    RAISE EXCEPTION 'calls are deleted by oncegate only: a deleted call could run again'
      USING HINT = 'In an emergency: SET oncegate.prune = on';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER only_cleanup BEFORE DELETE OR TRUNCATE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION only_cleanup_deletes();
CREATE TRIGGER only_cleanup BEFORE DELETE OR TRUNCATE ON gateways FOR EACH STATEMENT EXECUTE FUNCTION only_cleanup_deletes();
CREATE TRIGGER only_cleanup BEFORE DELETE OR TRUNCATE ON names FOR EACH STATEMENT EXECUTE FUNCTION only_cleanup_deletes();
CREATE TRIGGER only_cleanup BEFORE DELETE OR TRUNCATE ON calls FOR EACH STATEMENT EXECUTE FUNCTION only_cleanup_deletes();
CREATE TRIGGER only_cleanup BEFORE DELETE OR TRUNCATE ON states FOR EACH STATEMENT EXECUTE FUNCTION only_cleanup_deletes();
CREATE TRIGGER only_cleanup BEFORE DELETE OR TRUNCATE ON documents FOR EACH STATEMENT EXECUTE FUNCTION only_cleanup_deletes();
