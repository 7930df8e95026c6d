-- The tables of oncegate, for its role @role@. Run this as the owner of the database, once:
--   oncegate store sql --config FILE | psql --single-transaction -v ON_ERROR_STOP=1 DATABASE
-- The role itself: CREATE ROLE @role@ LOGIN PASSWORD '…'; GRANT pg_monitor TO @role@;
SELECT pg_advisory_xact_lock(hashtextextended('oncegate ' || '@schema@', 0));
CREATE SCHEMA @schema@;
SET LOCAL search_path = @schema@;
@tables@
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA @schema@ FROM PUBLIC;
GRANT USAGE ON SCHEMA @schema@ TO @role@;
GRANT SELECT ON ALL TABLES IN SCHEMA @schema@ TO @role@;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA @schema@ TO @role@;
