-- The sixth step of the schema: what is kept beside the calls.

CREATE TABLE documents (
  digest       BLOB PRIMARY KEY,      -- of kind, tenant and id
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
