-- How many calls of each tool are in each state that a gateway watches.
SELECT tool, 'running', count(*) FROM states WHERE state = 0 GROUP BY tool
UNION ALL SELECT tool, 'unknown', count(*) FROM states WHERE state = 3 GROUP BY tool
UNION ALL SELECT tool, CASE state WHEN 7 THEN 'proposed' ELSE 'approved' END, count(*) FROM states WHERE state IN (7, 8)
  GROUP BY state, tool
