-- The third step of the schema: when an unknown call is worked on next.

ALTER TABLE calls ADD COLUMN check_at    INTEGER;
ALTER TABLE calls ADD COLUMN check_since INTEGER;
ALTER TABLE calls ADD COLUMN checks      INTEGER;
CREATE INDEX calls_to_check ON calls (tool, check_at) WHERE state = 'unknown' AND check_at IS NOT NULL;
