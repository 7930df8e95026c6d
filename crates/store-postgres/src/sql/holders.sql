-- The calls that hold these names ($1), each with its names, in the order of the names. One row says whether this is the server
-- that was inspected ($2) if there is none: another one may have older data.
SELECT CASE WHEN h.call_id IS NULL THEN is_known($2) END, h.lookups,
    c.intent, c.args, s.progress, s.result, s.fencing, s.similar_to, h.call_id
  FROM (VALUES (1)) one LEFT JOIN (
    SELECT n.call_id, array_agg(u.lookup ORDER BY nth) AS lookups, min(nth) AS first
      FROM unnest($1::uuid[]) WITH ORDINALITY u (lookup, nth) JOIN names n USING (lookup) GROUP BY n.call_id) h ON true
    LEFT JOIN states s ON s.call_id = h.call_id LEFT JOIN calls c ON c.call_id = h.call_id
  ORDER BY h.first
