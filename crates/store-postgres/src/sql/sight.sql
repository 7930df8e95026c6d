-- What the loss check compares, as JSON: the row of the ledger; the beats of the last hours, and of the gateways in $1; and the
-- highest token.
SELECT jsonb_build_object(
    'ledger', (SELECT to_jsonb(l) FROM ledger l),
    'beats', coalesce(jsonb_object_agg(gateway, beat), '{}'),
    'recent', coalesce(jsonb_agg(gateway) FILTER (WHERE is_recent), '[]'),
    'token', greatest((SELECT token FROM ledger), max(token), 0))::text
  FROM (SELECT gateway, beat, token, seen_at > clock_timestamp() - interval '2 hours' AS is_recent FROM gateways) g
  WHERE is_recent OR gateway = ANY ($1)
