-- What a server says of itself, as JSON. A plain role may ask it; of standbys it sees the number, and their state only as a member of
-- pg_monitor.
SELECT to_jsonb(f)::text FROM (SELECT
  (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS started_us,
  (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock_us,
  version() AS version, pg_is_in_recovery() AS is_in_recovery, current_setting('transaction_read_only') = 'on' AS is_read_only,
  current_setting('fsync') = 'on' AS fsync, current_setting('full_page_writes') = 'on' AS full_page_writes,
  current_setting('synchronous_commit') AS synchronous_commit,
  current_setting('synchronous_standby_names') AS standby_names, current_setting('data_checksums') = 'on' AS checksums,
  current_setting('wal_level') AS wal_level, current_setting('server_encoding') AS encoding,
  pg_has_role(current_user, 'pg_monitor', 'USAGE') AS is_monitor,
  (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_superuser,
  (SELECT count(*) FROM pg_stat_replication s WHERE s.state IS DISTINCT FROM 'backup' AND NOT EXISTS (
    SELECT FROM pg_replication_slots r WHERE r.active_pid = s.pid AND r.slot_type = 'logical')) AS standbys,
  (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS sync_standbys) f
