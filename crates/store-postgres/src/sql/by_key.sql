-- The calls of these keys ($1), and those that hold these names ($6), newest first: not before $2, older than ($3, $4), at most $5.
SELECT created_at, call_id FROM (
    SELECT created_at, call_id FROM calls WHERE by_key = ANY ($1::bigint[])
    UNION SELECT c.created_at, c.call_id FROM names n JOIN calls c ON c.call_id = n.call_id WHERE n.lookup = ANY ($6::uuid[])) p
  WHERE created_at >= $2 AND (created_at, call_id) < ($3, $4)
  ORDER BY created_at DESC, call_id DESC LIMIT $5
