-- The verbs that write, as functions. They compare and write what they are told; the rules are in the gateway. They are
-- called by statements of a transaction whose locks were taken before (lock_1), in one order for all gateways. READ COMMITTED: each
-- statement in a function has a snapshot of its own, taken after the locks. A function or a type that changes gets
-- another number, so that two versions of the gateway work side by side.
-- They run with the rights of their owner (@secure@ below), so that the gateway's role can neither create nor delete anything.

-- After the word the columns of a stored call, in the order in which the gateway reads them everywhere.
CREATE TYPE answer AS (
  word text, intent bytea, args bytea, progress bytea, result bytea, token bigint, similar_to uuid,
  other uuid, at bigint, lock_token bigint, lock_lease bigint, lock_free_from bigint
);

-- The conditions of a claim, or of a change that begins a run. A member that is NULL is not compared.
CREATE TYPE conditions_1 AS (
  this_token bigint, keeps boolean,          -- the caller's token; or it keeps the token that it has; else it gets the next one
  floor bigint, latest_clock bigint,         -- the lowest next token; a later clock of this server is a fault, and does not count
  explained bigint,                          -- the highest token before the last accepted loss
  locks boolean, lease bigint, line_us bigint, line_length bigint,
  budget uuid, budget_max bigint, budget_us bigint,
  alike uuid, alike_us bigint,               -- the group of similar calls, and for how long a call counts there
  refuses boolean, confirmed uuid            -- whether a similar call is a reason to refuse; the one that the caller has confirmed
);

-- A call that gives up its names, if it is still exactly as the gateway has read it. list: the list of its key, if it loses the
-- name made of that.
CREATE TYPE giver_1 AS (call_id uuid, version bigint, attempt uuid, list bigint);

-- A claim or a change of a call. Arrays that would be empty are NULL.
CREATE TYPE change_1 AS (
  known text,                                -- the server and data that must be there; NULL, in a change: any will do
  call_id uuid, session uuid, names uuid[], takes uuid[], givers giver_1[],
  created_at bigint, lists bigint[], tenant text, tool text,
  was_version bigint, was_attempt uuid, was_fencing bigint,
  state smallint, version bigint, attempt uuid, due_at bigint, searched text, by_state bigint, retain_until bigint,
  similar_to uuid, intent bytea, args bytea, progress bytea, entry bytea, result bytea,
  conditions conditions_1,
  latest bigint,                             -- the latest time at which the run may begin; NULL if none begins
  free_from bigint, retakes boolean, leaves uuid
);

-- Takes the locks of a transaction, which the gateway has sorted. Makes its commit a durable one, whatever a role was set to:
-- a SET clause of a function would end before the commit.
CREATE FUNCTION lock_1(p_keys bigint[], p_shared boolean[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  -- unnest keeps the order of the array, in which the locks are taken. Advisory locks belong to the whole database: the hash of the
  -- schema keeps installations apart, and leaves different keys different.
  PERFORM CASE WHEN shared THEN pg_advisory_xact_lock_shared(lock) ELSE pg_advisory_xact_lock(lock) END
    FROM (SELECT key # hashtextextended('@schema@', 0) AS lock, shared FROM unnest(p_keys, p_shared) AS wanted (key, shared)) locks;
  PERFORM set_config('oncegate.locked', 'yes', true);
END $$;

-- Whether a verb stands outside of its transaction, whose beginning may have failed: it would write without its locks.
CREATE FUNCTION is_unlocked() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(current_setting('oncegate.locked', true), '') = '';
END $$;

CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Which server and which data this is; NULL if something is known to be lost.
CREATE FUNCTION identity() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint || ' ' || epoch || ' '
    || current_setting('synchronous_standby_names') FROM ledger WHERE lost = '');
END $$;

-- Whether this is the server that the gateway has inspected, with the data that it knows, and nothing is known to be lost.
CREATE FUNCTION is_known(p_known text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(identity() = p_known, false);
END $$;

-- An answer with a stored call. 'gone': there is no such call; 'half': a part of it is missing.
CREATE FUNCTION stored(p_word text, p_call uuid, OUT a answer) LANGUAGE plpgsql STABLE AS $$
DECLARE c record; s record;
BEGIN
  SELECT intent, args INTO c FROM calls WHERE call_id = p_call;
  SELECT progress, result, fencing, similar_to INTO s FROM states WHERE call_id = p_call;
  a.other := p_call;
  IF c.intent IS NULL AND s.progress IS NULL THEN a.word := 'gone'; RETURN; END IF;
  a.word := CASE WHEN c.intent IS NULL OR s.progress IS NULL THEN 'half' ELSE p_word END;
  a.intent := c.intent; a.args := c.args;
  a.progress := s.progress; a.result := s.result; a.token := s.fencing; a.similar_to := s.similar_to;
END $$;

-- The first condition that does not hold, as a word. Without one it writes what follows from the conditions: token, lock and
-- places. The lock comes last, so that no call waits for it that another condition refuses anyway.
-- s: the session's row; newest: the highest token of its calls.
CREATE FUNCTION admit(p_call uuid, p_session uuid, c conditions_1, s sessions, newest bigint, OUT a answer) LANGUAGE plpgsql AS $$
DECLARE
  clock_us bigint := now_us(); similar_call uuid; place bigint; own bigint; waiting bigint; ahead bigint; held boolean;
BEGIN
  newest := greatest(s.token, newest);
  IF s.frozen THEN a.word := 'frozen'; RETURN; END IF;
  IF c.this_token IS NOT NULL THEN
    IF c.this_token < coalesce(newest, 0) THEN a.word := 'stale'; RETURN; END IF;
    IF c.this_token = 0 OR c.this_token > greatest(newest, c.explained) THEN a.word := 'not_given'; RETURN; END IF;
  END IF;
  IF c.alike IS NOT NULL THEN
    SELECT call_id INTO similar_call FROM places
      WHERE room = c.alike AND place_until > clock_us AND call_id <> p_call
      ORDER BY place_until DESC, call_id DESC LIMIT 1;
    IF c.refuses AND similar_call IS NOT NULL AND similar_call IS DISTINCT FROM c.confirmed THEN
      a.word := 'similar'; a.other := similar_call; RETURN;
    END IF;
  END IF;
  IF c.budget IS NOT NULL THEN
    -- A call that has a place needs no room. Else the place whose end makes room: all but max - 1 of the newer ones have ended by then.
    SELECT place_until INTO place FROM places WHERE room = c.budget AND place_until > clock_us AND NOT EXISTS (
        SELECT FROM places WHERE room = c.budget AND call_id = p_call AND place_until > clock_us)
      ORDER BY place_until DESC LIMIT 1 OFFSET greatest(c.budget_max - 1, 0);
    IF FOUND THEN a.word := 'spent'; a.at := place; RETURN; END IF;
  END IF;
  IF c.locks THEN
    -- A call that did not ask again in time has lost its place.
    DELETE FROM line WHERE session = p_session AND place_until <= clock_us;
    held := s.lock_call IS NOT NULL AND s.lock_call <> p_call AND coalesce(s.lock_free_from > clock_us, true);
    SELECT came_at INTO own FROM line WHERE session = p_session AND call_id = p_call;
    SELECT count(*), count(*) FILTER (WHERE own IS NULL OR came_at < own) INTO waiting, ahead FROM line WHERE session = p_session;
    IF s.lock_call IS DISTINCT FROM p_call AND (held OR ahead > 0) THEN
      a.word := 'busy';
      IF held THEN
        a.other := s.lock_call; a.lock_token := s.lock_token; a.lock_lease := s.lock_lease; a.lock_free_from := s.lock_free_from;
      END IF;
      IF c.line_us IS NOT NULL AND (own IS NOT NULL OR waiting < c.line_length) THEN
        a.similar_to := s.lock_call;
        IF ahead > 0 THEN
          SELECT call_id INTO a.similar_to FROM line WHERE session = p_session ORDER BY came_at LIMIT 1 OFFSET ahead - 1;
        END IF;
        -- Two calls within one microsecond stand in the order in which they were written.
        INSERT INTO line VALUES (p_session, p_call,
            greatest(clock_us, (SELECT max(came_at) + 1 FROM line WHERE session = p_session)), clock_us + c.line_us)
          ON CONFLICT (session, call_id) DO UPDATE SET place_until = excluded.place_until;
      END IF;
      RETURN;
    END IF;
  END IF;
  a.similar_to := similar_call;
  IF c.keeps THEN
    SELECT fencing INTO a.token FROM states WHERE call_id = p_call;
  ELSE
    -- A clock far ahead of the gateway's is a fault, and does not count.
    a.token := coalesce(c.this_token, greatest(newest + 1, c.floor,
      CASE WHEN clock_us <= c.latest_clock THEN clock_us END));
  END IF;
  IF c.locks THEN
    INSERT INTO sessions (session, token, lock_call, lock_token, lock_lease)
      VALUES (p_session, a.token, p_call, a.token, c.lease)
      ON CONFLICT (session) DO UPDATE SET token = excluded.token, lock_call = excluded.lock_call,
        lock_token = excluded.lock_token, lock_lease = excluded.lock_lease, lock_free_from = NULL;
    DELETE FROM line WHERE session = p_session AND call_id = p_call;
  END IF;
  IF c.budget IS NOT NULL THEN PERFORM take_place(c.budget, p_call, clock_us, c.budget_us); END IF;
  IF c.alike IS NOT NULL THEN
    PERFORM take_place(c.alike, p_call, clock_us, c.alike_us);
    -- Only the newest call counts. Some older ones stay, because the newest may give up its place.
    DELETE FROM places WHERE room = c.alike AND call_id IN (
      SELECT call_id FROM places WHERE room = c.alike ORDER BY place_until DESC, call_id DESC OFFSET 16);
  END IF;
END $$;

-- Gives a call a place in a group, or a longer time in it if its time is over.
CREATE FUNCTION take_place(p_room uuid, p_call uuid, p_now bigint, p_us bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO places VALUES (p_room, p_call, p_now + p_us)
    ON CONFLICT (room, call_id) DO UPDATE SET place_until = excluded.place_until WHERE places.place_until <= p_now;
END $$;

-- The first of these names that another call holds and does not give up; NULL if there is none. A giver gives up its names
-- only if it is still exactly as the gateway has read it. A name whose call is gone is held by it.
CREATE FUNCTION holder(p_names uuid[], p_call uuid, p_givers giver_1[]) RETURNS uuid LANGUAGE plpgsql STABLE AS $$
BEGIN
  PERFORM FROM names WHERE lookup = ANY (p_names) AND call_id <> p_call;
  IF NOT FOUND THEN RETURN NULL; END IF;
  RETURN (SELECT n.call_id FROM unnest(p_names) WITH ORDINALITY u (lookup, nth)
    JOIN names n USING (lookup) LEFT JOIN states s ON s.call_id = n.call_id
    WHERE n.call_id <> p_call AND NOT EXISTS (
      SELECT FROM unnest(p_givers) g WHERE g.call_id = n.call_id AND g.version = s.version AND g.attempt = s.attempt)
    ORDER BY nth LIMIT 1);
END $$;

-- Gives a call names, which others may give up. A giver that loses the name of its key is found by a list of its key from then on.
CREATE FUNCTION take_names(p_names uuid[], p_call uuid, p_givers giver_1[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  -- The unique index is the safety net.
  IF p_givers IS NULL THEN INSERT INTO names SELECT u, p_call FROM unnest(p_names) u; RETURN; END IF;
  INSERT INTO names SELECT u, p_call FROM unnest(p_names) u ON CONFLICT (lookup) DO UPDATE SET call_id = excluded.call_id
    WHERE names.call_id IN (SELECT g.call_id FROM unnest(p_givers) g);
  IF (SELECT count(*) FROM names WHERE lookup = ANY (p_names) AND call_id = p_call) < cardinality(p_names) THEN
    RAISE EXCEPTION 'a name is held by a call that does not give it up';
  END IF;
  UPDATE calls SET by_key = g.list FROM unnest(p_givers) g
    WHERE calls.call_id = g.call_id AND g.list IS NOT NULL AND by_key IS NULL;
END $$;

-- Claims all names of each of these calls, of which no two need the same lock. Answers for each, in their order: 'new'; 'done' if it
-- was claimed before, and the answer was lost; 'held' and the call that holds a name; 'unknown_server'; 'late' and this clock;
-- or a denial. Looks and writes for all of them at once, since each statement costs time of its own.
-- The clock, and which data this is, are read once for all.
CREATE FUNCTION claim_1(p_claims change_1[]) RETURNS SETOF answer LANGUAGE plpgsql @secure@ AS $$
DECLARE
  found_here text := identity(); clock_us bigint := now_us();
  c record; a answer; answers answer[]; held uuid; again boolean; has_tools boolean := false;
BEGIN
  IF is_unlocked() THEN RAISE EXCEPTION 'the locks of this transaction were not taken'; END IF;
  FOR c IN SELECT n.call_id, n.session, n.names, n.givers, n.tenant, n.known, n.version, n.attempt, n.conditions, n.latest,
      s AS at_session, EXISTS (SELECT FROM names WHERE lookup = ANY (n.names)) AS is_held,
      (SELECT fencing FROM calls o WHERE o.session = n.session AND fencing IS NOT NULL ORDER BY fencing DESC LIMIT 1) AS newest
    FROM unnest(p_claims) WITH ORDINALITY n LEFT JOIN sessions s ON s.session = n.session ORDER BY n.ordinality
  LOOP
    a := NULL; held := NULL; again := false;
    IF c.is_held THEN
      -- Where no call holds a name this claim was not committed before, either.
      again := EXISTS (SELECT FROM states WHERE call_id = c.call_id AND version = c.version AND attempt = c.attempt);
      IF NOT again THEN held := holder(c.names, '00000000-0000-0000-0000-000000000000', c.givers); END IF;
    END IF;
    IF held IS NOT NULL THEN
      a := stored('held', held);
    ELSIF NOT coalesce(found_here = c.known, false) THEN
      a.word := 'unknown_server';
    ELSIF again THEN
      -- A write, so that this commit waits for the standby, and with it for the first commit, whose answer was lost.
      UPDATE states SET version = version WHERE call_id = c.call_id;
      a := stored('done', c.call_id);
    ELSIF clock_us > c.latest THEN
      a.word := 'late'; a.at := clock_us;
    ELSE
      -- IS NOT NULL would be false as soon as one member is NULL.
      IF NOT (c.conditions IS NULL) THEN a := admit(c.call_id, c.session, c.conditions, c.at_session, c.newest); END IF;
      IF a.word IS NULL THEN
        a.word := 'new'; has_tools := has_tools OR c.tenant IS NOT NULL;
        IF c.givers IS NOT NULL THEN PERFORM take_names(c.names, c.call_id, c.givers); END IF;
      END IF;
    END IF;
    answers := answers || a;
    RETURN NEXT a;
  END LOOP;
  -- Those with givers have their names already. If another call holds a name after all, the unique index fails the transaction.
  INSERT INTO names SELECT unnest(n.names), n.call_id FROM unnest(p_claims) WITH ORDINALITY n
    WHERE (answers[n.ordinality]).word = 'new' AND n.givers IS NULL;
  IF has_tools THEN
    INSERT INTO tools SELECT n.tenant, n.tool FROM unnest(p_claims) WITH ORDINALITY n
      WHERE (answers[n.ordinality]).word = 'new' AND n.tenant IS NOT NULL ORDER BY n.tenant, n.tool ON CONFLICT DO NOTHING;
  END IF;
  INSERT INTO calls SELECT n.call_id, n.created_at, n.lists[1], n.lists[2], n.lists[3], n.lists[4], n.lists[5], n.session,
      (answers[n.ordinality]).token, n.intent, n.args FROM unnest(p_claims) WITH ORDINALITY n
    WHERE (answers[n.ordinality]).word = 'new';
  INSERT INTO states SELECT n.call_id, n.created_at, n.version, n.attempt, (answers[n.ordinality]).token, n.state, n.due_at,
      n.searched, n.by_state, n.retain_until, (answers[n.ordinality]).similar_to, n.progress, n.entry, n.result
    FROM unnest(p_claims) WITH ORDINALITY n WHERE (answers[n.ordinality]).word = 'new';
END $$;

-- Writes these changes of calls, of which no two need the same lock, each if version, attempt and token are the expected ones.
-- Answers for each, in their order: 'done', also for the same change again; 'changed' and the call that is in its way; 'gone';
-- 'unknown_server'; 'late', the call as it is and this clock; or a denial.
CREATE FUNCTION replace_1(p_changes change_1[]) RETURNS SETOF answer LANGUAGE plpgsql @secure@ AS $$
DECLARE c change_1; a answer; written bigint[]; nth bigint := 0;
BEGIN
  IF is_unlocked() THEN RAISE EXCEPTION 'the locks of this transaction were not taken'; END IF;
  -- Outcomes that change nothing else, and have nothing in their way, as most: one statement for all of them. Without `known` a change
  -- neither begins a run nor takes names, so its names, takes, givers and latest are NULL.
  WITH plain AS (
    UPDATE states s SET version = n.version, attempt = n.attempt, state = n.state, due_at = n.due_at, tool = n.searched,
        by_state = n.by_state, retain_until = n.retain_until, similar_to = n.similar_to, progress = n.progress,
        result = n.result, history = s.history || n.entry
      FROM unnest(p_changes) WITH ORDINALITY n
      WHERE s.call_id = n.call_id AND s.version = n.was_version AND s.attempt = n.was_attempt
        AND s.fencing IS NOT DISTINCT FROM n.was_fencing AND octet_length(s.history) < 4096 AND n.known IS NULL
        AND n.conditions IS NULL AND n.intent IS NULL AND n.lists IS NULL AND n.free_from IS NULL AND n.leaves IS NULL
      RETURNING n.ordinality)
    SELECT array_agg(ordinality) INTO written FROM plain;
  FOREACH c IN ARRAY p_changes LOOP
    nth := nth + 1; a := NULL;
    IF nth = ANY (written) THEN a.word := 'done'; ELSE a := change(c); END IF;
    RETURN NEXT a;
  END LOOP;
END $$;

-- Writes one change. names: names that the call must hold. intent: NULL if intent and arguments stay. similar_to: the similar call,
-- if there are no conditions. lists: the lists of a call whose names are erased; its session stays, because the newest token of a
-- session is that of its calls.
CREATE FUNCTION change(c change_1, OUT a answer) LANGUAGE plpgsql AS $$
DECLARE s record; h uuid; at_session sessions; newest bigint;
BEGIN
  IF c.names IS NOT NULL THEN
    h := holder(c.names, c.call_id, NULL);
    IF h IS NOT NULL THEN a := stored('changed', h); RETURN; END IF;
  END IF;
  SELECT version, attempt, fencing, progress, result, octet_length(history) AS length INTO s FROM states WHERE call_id = c.call_id;
  IF NOT FOUND THEN a := stored('changed', c.call_id); RETURN; END IF;
  IF s.version <> c.was_version OR s.attempt <> c.was_attempt OR s.fencing IS DISTINCT FROM c.was_fencing THEN
    IF s.progress <> c.progress OR s.result IS DISTINCT FROM c.result THEN a := stored('changed', c.call_id); RETURN; END IF;
    IF c.known IS NOT NULL AND NOT is_known(c.known) THEN a.word := 'unknown_server'; RETURN; END IF;
    UPDATE states SET version = version WHERE call_id = c.call_id;
    a := stored('done', c.call_id); RETURN;
  END IF;
  IF c.takes IS NOT NULL THEN
    h := holder(c.takes, c.call_id, c.givers);
    IF h IS NOT NULL THEN a := stored('changed', h); RETURN; END IF;
  END IF;
  IF c.names IS NOT NULL THEN
    IF (SELECT count(*) FROM names WHERE lookup = ANY (c.names) AND call_id = c.call_id) < cardinality(c.names) THEN
      a.word := 'gone'; RETURN;
    END IF;
  END IF;
  IF c.known IS NOT NULL AND NOT is_known(c.known) THEN a.word := 'unknown_server'; RETURN; END IF;
  IF now_us() > c.latest THEN a := stored('late', c.call_id); a.at := now_us(); RETURN; END IF;
  IF NOT (c.conditions IS NULL) THEN
    SELECT * INTO at_session FROM sessions WHERE session = c.session;
    SELECT fencing INTO newest FROM calls WHERE session = c.session AND fencing IS NOT NULL ORDER BY fencing DESC LIMIT 1;
    a := admit(c.call_id, c.session, c.conditions, at_session, newest);
    IF a.word IS NOT NULL THEN RETURN; END IF;
  ELSE
    a.token := s.fencing; a.similar_to := c.similar_to;
  END IF;
  IF c.intent IS NOT NULL THEN
    UPDATE calls SET intent = c.intent, args = c.args, fencing = a.token
      WHERE call_id = c.call_id AND (intent <> c.intent OR args <> c.args OR fencing IS DISTINCT FROM a.token);
  END IF;
  IF c.lists IS NOT NULL THEN
    UPDATE calls SET by_trace = c.lists[2], by_user = c.lists[3] WHERE call_id = c.call_id;
  END IF;
  IF c.takes IS NOT NULL THEN
    PERFORM take_names(ARRAY(SELECT u FROM unnest(c.takes) u WHERE NOT EXISTS (
      SELECT FROM names WHERE lookup = u AND call_id = c.call_id)), c.call_id, c.givers);
  END IF;
  -- A change writes the whole row, so a long history moves into older parts.
  IF s.length >= 4096 THEN
    INSERT INTO older SELECT c.call_id, 1 + coalesce((SELECT max(part) FROM older WHERE call_id = c.call_id), 0), history
      FROM states WHERE call_id = c.call_id;
  END IF;
  UPDATE states SET version = c.version, attempt = c.attempt, fencing = a.token, state = c.state, due_at = c.due_at,
      tool = c.searched, by_state = c.by_state, retain_until = c.retain_until, similar_to = a.similar_to,
      progress = c.progress, result = c.result,
      history = CASE WHEN s.length >= 4096 THEN c.entry ELSE history || c.entry END
    WHERE call_id = c.call_id;
  IF c.free_from IS NOT NULL THEN
    -- The store may have lost who has the lock.
    IF c.retakes AND c.free_from > 0 THEN
      INSERT INTO sessions (session, token, lock_call, lock_token, lock_lease, lock_free_from)
        VALUES (c.session, a.token, c.call_id, a.token, c.free_from, c.free_from)
        ON CONFLICT (session) DO UPDATE SET lock_call = excluded.lock_call, lock_token = excluded.lock_token,
          lock_lease = excluded.lock_lease, lock_free_from = excluded.lock_free_from
        WHERE sessions.lock_call IS NULL;
    END IF;
    UPDATE sessions SET lock_call = CASE WHEN c.free_from > 0 THEN lock_call END, lock_free_from = nullif(c.free_from, 0)
      WHERE session = c.session AND lock_call = c.call_id AND lock_token = a.token;
  END IF;
  IF c.leaves IS NOT NULL THEN DELETE FROM places WHERE room = c.leaves AND call_id = c.call_id; END IF;
  a.word := 'done';
END $$;

-- Deletes calls whose own records say that their retention is over, if they have not changed since they were read. Keeps the
-- newest token of a session: p_recent is the age below which the clock alone does not keep tokens rising.
CREATE FUNCTION forget_1(
  p_known text, p_calls uuid[], p_versions bigint[], p_names uuid[], p_holders uuid[],
  p_recent bigint, OUT word text, OUT forgotten bigint
) LANGUAGE plpgsql @secure@ AS $$
DECLARE gone uuid[];
BEGIN
  IF is_unlocked() THEN RAISE EXCEPTION 'the locks of this transaction were not taken'; END IF;
  IF NOT is_known(p_known) THEN word := 'unknown_server'; RETURN; END IF;
  PERFORM set_config('oncegate.prune', 'on', true);
  WITH deleted AS (
    DELETE FROM states s USING unnest(p_calls, p_versions) d (call_id, version)
      WHERE s.call_id = d.call_id AND s.version = d.version RETURNING s.call_id)
    SELECT coalesce(array_agg(call_id), '{}') INTO gone FROM deleted;
  INSERT INTO sessions (session, token)
    SELECT session, max(fencing) FROM calls c WHERE call_id = ANY (gone) AND fencing > p_recent AND NOT EXISTS (
      SELECT FROM calls o WHERE o.session = c.session AND o.fencing >= c.fencing AND o.call_id <> ALL (gone))
    GROUP BY session ORDER BY session
    ON CONFLICT (session) DO UPDATE SET token = greatest(sessions.token, excluded.token);
  DELETE FROM names n USING unnest(p_names, p_holders) d (lookup, call_id)
    WHERE n.lookup = d.lookup AND n.call_id = d.call_id AND d.call_id = ANY (gone);
  DELETE FROM calls WHERE call_id = ANY (gone);
  DELETE FROM older WHERE call_id = ANY (gone);
  DELETE FROM duplicates WHERE call_id = ANY (gone);
  PERFORM set_config('oncegate.prune', '', true);
  word := 'done'; forgotten := cardinality(gone);
END $$;

-- Gives damaged calls a later time of deletion, so that they do not keep cleanup from other calls.
CREATE FUNCTION postpone_1(p_calls uuid[], p_now bigint, p_later bigint) RETURNS bigint LANGUAGE sql @secure@ AS $$
  WITH postponed AS (
    UPDATE states SET retain_until = p_later WHERE call_id = ANY (p_calls) AND retain_until <= p_now RETURNING 1)
  SELECT count(*) FROM postponed
$$;

-- Deletes what is not about one call and whose time is over, at most so many of each. Answers the largest count.
CREATE FUNCTION prune_1(p_known text, p_now bigint, p_idle bigint, p_limit bigint,
  OUT word text, OUT forgotten bigint) LANGUAGE plpgsql @secure@ AS $$
DECLARE deleted bigint; idle uuid[];
BEGIN
  IF NOT is_known(p_known) THEN word := 'unknown_server'; RETURN; END IF;
  PERFORM set_config('oncegate.prune', 'on', true);
  DELETE FROM documents WHERE digest IN (
    SELECT digest FROM documents WHERE retain_until <= p_now ORDER BY retain_until LIMIT p_limit);
  GET DIAGNOSTICS forgotten = ROW_COUNT;
  DELETE FROM places WHERE (room, call_id) IN (SELECT room, call_id FROM places WHERE place_until <= p_now LIMIT p_limit);
  GET DIAGNOSTICS deleted = ROW_COUNT;
  forgotten := greatest(forgotten, deleted);
  DELETE FROM line WHERE (session, call_id) IN (SELECT session, call_id FROM line WHERE place_until <= p_now LIMIT p_limit);
  GET DIAGNOSTICS deleted = ROW_COUNT;
  forgotten := greatest(forgotten, deleted);
  WITH gone AS (
    DELETE FROM sessions WHERE session IN (
      SELECT session FROM sessions WHERE token < p_idle AND touched_at < p_idle AND NOT frozen
        AND (lock_call IS NULL OR lock_free_from < p_idle) LIMIT p_limit) RETURNING session)
    SELECT coalesce(array_agg(session), '{}') INTO idle FROM gone;
  DELETE FROM acts WHERE about = ANY (idle);
  forgotten := greatest(forgotten, cardinality(idle));
  DELETE FROM gateways WHERE seen_at < clock_timestamp() - interval '400 days';
  PERFORM set_config('oncegate.prune', '', true);
  word := 'done';
END $$;

CREATE FUNCTION count_duplicates_1(p_call uuid, p_count bigint, p_last bytea[], p_listed integer) RETURNS void
  LANGUAGE sql @secure@ AS $$
  INSERT INTO duplicates AS d SELECT p_call, p_count, p_last[1:p_listed] FROM states WHERE call_id = p_call
    ON CONFLICT (call_id) DO UPDATE SET count = d.count + excluded.count, last = (excluded.last || d.last)[1:p_listed]
$$;

-- Adds an act of an operator, of which the newest hundred are kept.
CREATE FUNCTION add_act(p_about uuid, p_at bigint, p_event text, p_actor text, p_detail text) RETURNS void
  LANGUAGE sql AS $$
  INSERT INTO acts (about, at, event, actor, detail) VALUES (p_about, p_at, p_event, p_actor, p_detail);
  DELETE FROM acts WHERE about = p_about AND seq <= (SELECT seq FROM acts WHERE about = p_about ORDER BY seq DESC LIMIT 1 OFFSET 100)
$$;

CREATE FUNCTION unlock_1(
  p_session uuid, p_call uuid, p_token bigint, p_at bigint, p_event text, p_actor text, p_detail text
) RETURNS boolean LANGUAGE plpgsql @secure@ AS $$
BEGIN
  IF is_unlocked() THEN RAISE EXCEPTION 'the locks of this transaction were not taken'; END IF;
  UPDATE sessions SET lock_call = NULL, lock_free_from = NULL, touched_at = p_at
    WHERE session = p_session AND lock_call = p_call AND lock_token = p_token;
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM add_act(p_session, p_at, p_event, p_actor, p_detail);
  RETURN true;
END $$;

CREATE FUNCTION freeze_1(
  p_session uuid, p_frozen boolean, p_at bigint, p_event text, p_actor text, p_detail text
) RETURNS boolean LANGUAGE plpgsql @secure@ AS $$
BEGIN
  IF is_unlocked() THEN RAISE EXCEPTION 'the locks of this transaction were not taken'; END IF;
  INSERT INTO sessions (session, token) VALUES (p_session, 0) ON CONFLICT DO NOTHING;
  UPDATE sessions SET frozen = p_frozen, touched_at = p_at WHERE session = p_session AND frozen <> p_frozen;
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM add_act(p_session, p_at, p_event, p_actor, p_detail);
  RETURN true;
END $$;

CREATE FUNCTION leave_line_1(p_session uuid, p_call uuid) RETURNS void LANGUAGE sql @secure@ AS $$
  DELETE FROM line WHERE session = p_session AND call_id = p_call
$$;

CREATE FUNCTION pause_1(
  p_about uuid, p_tool text, p_paused boolean, p_at bigint, p_event text, p_actor text, p_detail text
) RETURNS boolean LANGUAGE plpgsql @secure@ AS $$
BEGIN
  IF p_paused THEN
    INSERT INTO paused_tools VALUES (p_tool, p_at, p_event, p_actor, p_detail) ON CONFLICT DO NOTHING;
  ELSE
    DELETE FROM paused_tools WHERE tool = p_tool;
  END IF;
  IF NOT FOUND THEN RETURN false; END IF;
  PERFORM add_act(p_about, p_at, p_event, p_actor, p_detail);
  RETURN true;
END $$;

-- Writes a document if its previous version is stored, or none for version 1. Answers 'done', also for the same document again,
-- 'changed' or 'unknown_server'. p_known: NULL to write to any data.
CREATE FUNCTION put_document_1(
  p_known text, p_digest uuid, p_kind text, p_tenant bytea, p_id bytea, p_version bigint,
  p_state text, p_created bigint, p_due bigint, p_retain bigint, p_body bytea
) RETURNS text LANGUAGE plpgsql @secure@ AS $$
DECLARE d documents;
BEGIN
  IF is_unlocked() THEN RAISE EXCEPTION 'the locks of this transaction were not taken'; END IF;
  SELECT * INTO d FROM documents WHERE digest = p_digest;
  IF d IS NOT DISTINCT FROM
    ROW (p_digest, p_kind, p_tenant, p_id, p_version, p_state, p_created, p_due, p_retain, p_body)::documents THEN
    UPDATE documents SET version = version WHERE digest = p_digest;
    RETURN 'done';
  END IF;
  IF coalesce(d.version, 0) + 1 <> p_version THEN RETURN 'changed'; END IF;
  IF p_known IS NOT NULL AND NOT is_known(p_known) THEN RETURN 'unknown_server'; END IF;
  INSERT INTO documents VALUES (p_digest, p_kind, p_tenant, p_id, p_version, p_state, p_created, p_due, p_retain, p_body)
    ON CONFLICT (digest) DO UPDATE SET version = p_version, state = p_state, created_at = p_created, due_at = p_due,
      retain_until = p_retain, body = p_body;
  RETURN 'done';
END $$;

-- Raises a gateway's beat, unless beats that it knows are missing: a growing beat would hide the loss.
CREATE FUNCTION beat_1(
  p_known text, p_gateway uuid, p_beat bigint, p_token bigint, OUT word text, OUT at bigint
) LANGUAGE plpgsql @secure@ AS $$
BEGIN
  IF NOT is_known(p_known) THEN word := 'unknown_server'; RETURN; END IF;
  UPDATE gateways SET beat = beat + 1, token = greatest(token, p_token), seen_at = clock_timestamp()
    WHERE gateway = p_gateway AND beat >= p_beat RETURNING beat INTO at;
  IF NOT FOUND THEN
    IF p_beat > 0 THEN word := 'lost'; RETURN; END IF;
    INSERT INTO gateways VALUES (p_gateway, 1, p_token);
    at := 1;
  END IF;
  word := 'done';
END $$;

-- Names the data of a new installation, if no gateway was faster. p_lost: what an earlier installation had and this one lacks.
CREATE FUNCTION begin_1(p_epoch uuid, p_follows uuid[], p_lost text) RETURNS void LANGUAGE sql @secure@ AS $$
  INSERT INTO ledger (epoch, follows, lost, whole_since) VALUES (p_epoch, p_follows, p_lost, now_us()) ON CONFLICT DO NOTHING
$$;

-- Closes the store for all gateways because of a loss, if the ledger is still the one that was judged. p_follows: the epoch of the
-- gateway that has found the loss, or NULL if the ledger knows it: otherwise it would not know the accepted store again.
CREATE FUNCTION close_1(p_seen uuid, p_seen_lost text, p_lost text, p_follows uuid) RETURNS boolean
  LANGUAGE plpgsql @secure@ AS $$
BEGIN
  UPDATE ledger SET lost = CASE WHEN lost = '' THEN p_lost ELSE lost END,
      follows = CASE WHEN p_follows IS NULL THEN follows ELSE follows || p_follows END
    WHERE epoch = p_seen AND lost = p_seen_lost;
  RETURN FOUND;
END $$;

-- Begins another epoch: an operator has accepted a loss. No token of it is below one that was given out before.
CREATE FUNCTION accept_1(p_seen uuid, p_next uuid, p_also uuid, p_reason text, p_token bigint) RETURNS boolean
  LANGUAGE plpgsql @secure@ AS $$
BEGIN
  UPDATE ledger SET follows = (array_remove(follows || p_seen || p_also, NULL))[greatest(1, cardinality(follows) - 29):], epoch = p_next, lost = '',
      reason = p_reason, whole_since = now_us(),
      token = greatest(token, p_token, now_us(), (SELECT max(token) FROM gateways))
    WHERE epoch = p_seen;
  RETURN FOUND;
END $$;
