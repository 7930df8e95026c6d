-- From layout 15 (0.2.0) to 16: a feed of events, which begins with the events after the upgrade; and the index of
-- calls that wait for approval.
CREATE TABLE feed (
  number  INTEGER PRIMARY KEY,
  seq     INTEGER NOT NULL,
  version INTEGER NOT NULL,
  at      INTEGER NOT NULL
) STRICT;
CREATE INDEX calls_waiting ON calls (due_at) WHERE state IN (7, 8);
