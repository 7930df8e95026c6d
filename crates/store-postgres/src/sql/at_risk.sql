-- The calls behind $1, at most $2, whose state a loss may have set back: all that may still change or be sent again.
SELECT call_id FROM (
    (SELECT call_id FROM states WHERE state IN (2, 3) AND call_id > $1 ORDER BY call_id LIMIT $2)
    UNION ALL SELECT call_id FROM states WHERE state = 0 AND call_id > $1
    UNION ALL SELECT call_id FROM states WHERE state IN (7, 8) AND call_id > $1) s
  ORDER BY call_id LIMIT $2
