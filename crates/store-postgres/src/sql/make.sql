BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL lock_timeout = '10s';
SET LOCAL statement_timeout = '15s';
SELECT pg_advisory_xact_lock(hashtextextended('oncegate ' || '@schema@', 0));
CREATE SCHEMA IF NOT EXISTS @schema@;
DO $made$ BEGIN IF to_regclass('@schema@.oncegate_versions') IS NULL THEN EXECUTE $tables$@tables@$tables$; END IF; END $made$;
COMMIT
