-- The fourth step of the schema: what the ledger is asked by, and the duplicates of each call. Every index
-- begins with the tenant, so that looking for one's own calls never passes another's.

CREATE INDEX ledger_all     ON calls (tenant, created_at);
CREATE INDEX ledger_key     ON calls (tenant, key, created_at);
CREATE INDEX ledger_trace   ON calls (tenant, trace_id, created_at);
CREATE INDEX ledger_tool    ON calls (tenant, tool, created_at);
CREATE INDEX ledger_session ON calls (tenant, session_id, created_at) WHERE session_id <> '';
CREATE INDEX ledger_user    ON calls (tenant, user_id, created_at) WHERE user_id <> '';
-- Most calls have succeeded; those are found among all.
CREATE INDEX ledger_state   ON calls (tenant, state, created_at) WHERE state <> 'succeeded';

CREATE TABLE duplicates (
  call_id TEXT PRIMARY KEY,
  count   INTEGER NOT NULL,
  last    TEXT NOT NULL               -- the newest ones, newest first, as JSON: [[at, by, kind], …]
) STRICT, WITHOUT ROWID;
