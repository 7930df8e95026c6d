-- What a schema ($1) is, and what the role may do: whether it is there, is ours and has anything; rights, and those that are missing.
SELECT
  to_regnamespace($1) IS NOT NULL,
  EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relname = 'oncegate_versions'),
  EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($1)),
  coalesce(has_schema_privilege(to_regnamespace($1)::oid, 'USAGE'), false),
  coalesce((SELECT string_agg(what, ', ') FROM (
    SELECT 'SELECT on ' || relname AS what FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind IN ('r', 'v')
      AND NOT has_table_privilege(oid, 'SELECT')
    UNION ALL SELECT 'EXECUTE on ' || proname FROM pg_proc WHERE pronamespace = to_regnamespace($1)
      AND NOT has_function_privilege(oid, 'EXECUTE')) missing), '')
