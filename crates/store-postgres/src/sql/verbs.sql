-- The verbs that write, as functions. They compare and write what they are told; the rules are in the gateway. They are
-- called by statements of a transaction whose locks were taken before (lock_1), in one order for all gateways. READ COMMITTED: each
-- statement in a function has a snapshot of its own, taken after the locks. A function whose arguments change gets another
-- number, so that two versions of the gateway work side by side.
-- They run with the rights of their owner (@secure@ below), so that the gateway's role can neither create nor delete anything.

-- After the word the columns of a stored call, in the order in which the gateway reads them everywhere.
CREATE TYPE answer AS (
  word text, intent bytea, args bytea, progress bytea, result bytea, token bigint, similar_to uuid,
  other uuid, at bigint, lock_token bigint, lock_lease bigint, lock_free_from bigint
);

-- Takes the locks of a transaction, which the gateway has sorted. Makes its commit a durable one, whatever a role was set to:
-- a SET clause of a function would end before the commit.
CREATE FUNCTION lock_1(p_keys bigint[], p_shared boolean[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  PERFORM CASE WHEN shared THEN pg_advisory_xact_lock_shared(key) ELSE pg_advisory_xact_lock(key) END
    FROM unnest(p_keys, p_shared) AS locks (key, shared);
  PERFORM set_config('oncegate.locked', coalesce(identity(), 'none'), true);
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
CREATE FUNCTION is_known(p_server bigint, p_standbys text, p_epoch uuid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(identity() = p_server || ' ' || p_epoch || ' ' || p_standbys, false);
END $$;

-- The same, as it was when the transaction had its locks. A setting of the server may have changed since.
CREATE FUNCTION was_known(p_server bigint, p_standbys text, p_epoch uuid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(current_setting('oncegate.locked', true) = p_server || ' ' || p_epoch || ' ' || p_standbys
    AND current_setting('synchronous_standby_names') = p_standbys, false);
END $$;

-- An answer with a stored call. 'gone': there is no such call; 'half': a part of it is missing.
CREATE FUNCTION stored(p_word text, p_call uuid, OUT a answer) LANGUAGE plpgsql STABLE AS $$
DECLARE c record; s record;
BEGIN
  SELECT intent, args INTO c FROM calls WHERE call_id = p_call;
  SELECT progress, result, fencing, similar_to INTO s FROM states WHERE call_id = p_call;
  a.other := p_call;
  IF c.intent IS NULL AND s.progress IS NULL THEN a.word := 'gone'; RETURN; END IF;
  IF c.intent IS NULL OR s.progress IS NULL THEN a.word := 'half'; RETURN; END IF;
  a.word := p_word;
  a.intent := c.intent; a.args := c.args;
  a.progress := s.progress; a.result := s.result; a.token := s.fencing; a.similar_to := s.similar_to;
END $$;

-- The first condition that does not hold, as a word. Without one it writes what follows from the conditions: token, lock and
-- places. The lock comes last, so that no call waits for it that another condition refuses anyway.
-- p_admission: as `store::shared::conditions` says.
CREATE FUNCTION admit(
  p_call uuid, p_session uuid, p_admission text, OUT a answer
) LANGUAGE plpgsql AS $$
DECLARE
  c jsonb := p_admission; b jsonb := c -> 'budget'; l jsonb := c -> 'similar';
  clock_us bigint := now_us(); brought bigint := nullif(nullif(c ->> 'token', 'next'), 'none'); locks boolean := coalesce((c ->> 'lock')::boolean, false);
  s sessions; newest bigint; similar_call uuid; place bigint; own bigint; waiting bigint; ahead bigint; held boolean;
BEGIN
  SELECT * INTO s FROM sessions WHERE session = p_session;
  SELECT fencing INTO newest FROM calls WHERE session = p_session AND fencing IS NOT NULL ORDER BY fencing DESC LIMIT 1;
  newest := greatest(s.token, newest);
  IF s.frozen THEN a.word := 'frozen'; RETURN; END IF;
  IF brought IS NOT NULL THEN
    IF brought < coalesce(newest, 0) THEN a.word := 'stale'; RETURN; END IF;
    IF brought = 0 OR brought > greatest(newest, (c ->> 'explained')::bigint) THEN a.word := 'not_given'; RETURN; END IF;
  END IF;
  IF l IS NOT NULL THEN
    SELECT call_id INTO similar_call FROM places
      WHERE room = (l ->> 'group')::uuid AND place_until > clock_us AND call_id <> p_call
      ORDER BY place_until DESC, call_id DESC LIMIT 1;
    IF (l ->> 'refuses')::boolean AND similar_call IS NOT NULL AND similar_call IS DISTINCT FROM (l ->> 'confirmed')::uuid THEN
      a.word := 'similar'; a.other := similar_call; RETURN;
    END IF;
  END IF;
  IF b IS NOT NULL AND NOT EXISTS (
    SELECT FROM places WHERE room = (b ->> 'group')::uuid AND call_id = p_call AND place_until > clock_us
  ) THEN
    -- The place whose end makes room: all but max - 1 of the newer ones have ended by then.
    SELECT place_until INTO place FROM places WHERE room = (b ->> 'group')::uuid AND place_until > clock_us
      ORDER BY place_until DESC LIMIT 1 OFFSET greatest((b ->> 'max')::bigint - 1, 0);
    IF FOUND THEN a.word := 'spent'; a.at := place; RETURN; END IF;
  END IF;
  IF locks THEN
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
      IF (c ->> 'line_us') IS NOT NULL AND (own IS NOT NULL OR waiting < (c ->> 'line_length')::bigint) THEN
        a.similar_to := s.lock_call;
        IF ahead > 0 THEN
          SELECT call_id INTO a.similar_to FROM line WHERE session = p_session ORDER BY came_at LIMIT 1 OFFSET ahead - 1;
        END IF;
        -- Two calls within one microsecond stand in the order in which they were written.
        INSERT INTO line VALUES (p_session, p_call,
            greatest(clock_us, (SELECT max(came_at) + 1 FROM line WHERE session = p_session)), clock_us + (c ->> 'line_us')::bigint)
          ON CONFLICT (session, call_id) DO UPDATE SET place_until = excluded.place_until;
      END IF;
      RETURN;
    END IF;
  END IF;
  a.similar_to := similar_call;
  IF c ->> 'token' = 'none' THEN
    SELECT fencing INTO a.token FROM states WHERE call_id = p_call;
  ELSE
    -- A clock far ahead of the gateway's is a fault, and does not count.
    a.token := coalesce(brought, greatest(newest + 1, (c ->> 'floor')::bigint,
      CASE WHEN clock_us <= (c ->> 'latest')::bigint THEN clock_us END));
  END IF;
  IF locks THEN
    INSERT INTO sessions (session, token, lock_call, lock_token, lock_lease)
      VALUES (p_session, a.token, p_call, a.token, (c ->> 'lease')::bigint)
      ON CONFLICT (session) DO UPDATE SET token = excluded.token, lock_call = excluded.lock_call,
        lock_token = excluded.lock_token, lock_lease = excluded.lock_lease, lock_free_from = NULL;
    DELETE FROM line WHERE session = p_session AND call_id = p_call;
  END IF;
  IF b IS NOT NULL THEN PERFORM take_place((b ->> 'group')::uuid, p_call, clock_us, (b ->> 'window_us')::bigint); END IF;
  IF l IS NOT NULL THEN
    PERFORM take_place((l ->> 'group')::uuid, p_call, clock_us, (l ->> 'window_us')::bigint);
    -- Only the newest call counts. Some older ones stay, because the newest may give up its place.
    DELETE FROM places WHERE room = (l ->> 'group')::uuid AND call_id IN (
      SELECT call_id FROM places WHERE room = (l ->> 'group')::uuid ORDER BY place_until DESC, call_id DESC OFFSET 16);
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
CREATE FUNCTION holder(
  p_names uuid[], p_call uuid, p_givers uuid[], p_giver_versions bigint[], p_giver_attempts uuid[]
) RETURNS uuid LANGUAGE plpgsql STABLE AS $$
BEGIN
  PERFORM FROM names WHERE lookup = ANY (p_names) AND call_id <> p_call;
  IF NOT FOUND THEN RETURN NULL; END IF;
  RETURN (SELECT n.call_id FROM unnest(p_names) WITH ORDINALITY u (lookup, nth)
    JOIN names n USING (lookup) LEFT JOIN states s ON s.call_id = n.call_id
    WHERE n.call_id <> p_call AND NOT EXISTS (
      SELECT FROM unnest(p_givers, p_giver_versions, p_giver_attempts) g (id, version, attempt)
        WHERE g.id = n.call_id AND g.version = s.version AND g.attempt = s.attempt)
    ORDER BY nth LIMIT 1);
END $$;

-- Gives these names to a call. A giver that loses the name of its key is found by a list of its key from then on.
CREATE FUNCTION take_names(p_names uuid[], p_call uuid, p_givers uuid[], p_giver_lists bigint[]) RETURNS void
  LANGUAGE plpgsql AS $$
BEGIN
  IF cardinality(p_givers) = 0 THEN
    -- The unique index is the safety net.
    INSERT INTO names SELECT u, p_call FROM unnest(p_names) u;
    RETURN;
  END IF;
  INSERT INTO names SELECT u, p_call FROM unnest(p_names) u ON CONFLICT (lookup) DO UPDATE SET call_id = excluded.call_id;
  UPDATE calls SET by_key = g.list FROM unnest(p_givers, p_giver_lists) g (id, list)
    WHERE call_id = g.id AND g.list IS NOT NULL AND by_key IS NULL;
END $$;

-- Claims all names of a call. Answers 'done'; 'held' and the call that holds a name; 'unknown_server'; 'late' and this clock;
-- or a denial.
-- p_latest: the latest time at which the run may begin; NULL if none begins.
CREATE FUNCTION claim_1(
  p_server bigint, p_standbys text, p_epoch uuid,
  p_names uuid[], p_givers uuid[], p_giver_versions bigint[], p_giver_attempts uuid[], p_giver_lists bigint[],
  p_call uuid, p_created bigint, p_lists bigint[], p_session uuid, p_tenant text, p_tool text,
  p_state smallint, p_version bigint, p_attempt uuid, p_due bigint, p_searched text, p_by_state bigint, p_retain bigint,
  p_intent bytea, p_args bytea, p_progress bytea, p_entry bytea, p_result bytea,
  p_admission text, p_latest bigint, OUT a answer
) LANGUAGE plpgsql @secure@ AS $$
DECLARE h uuid; n uuid;
BEGIN
  IF is_unlocked() THEN RAISE EXCEPTION 'the locks of this transaction were not taken'; END IF;
  -- Where no call holds a name this claim was not committed before, either.
  PERFORM FROM names WHERE lookup = ANY (p_names);
  IF FOUND THEN
    IF EXISTS (SELECT FROM states WHERE call_id = p_call AND version = p_version AND attempt = p_attempt) THEN
      IF NOT was_known(p_server, p_standbys, p_epoch) THEN a.word := 'unknown_server'; RETURN; END IF;
      -- A write, so that this commit waits for the standby, and with it for the first commit, whose answer was lost.
      UPDATE states SET version = version WHERE call_id = p_call;
      a := stored('done', p_call); RETURN;
    END IF;
    h := holder(p_names, '00000000-0000-0000-0000-000000000000', p_givers, p_giver_versions, p_giver_attempts);
    IF h IS NOT NULL THEN a := stored('held', h); RETURN; END IF;
  END IF;
  IF NOT was_known(p_server, p_standbys, p_epoch) THEN a.word := 'unknown_server'; RETURN; END IF;
  IF now_us() > p_latest THEN a.word := 'late'; a.at := now_us(); RETURN; END IF;
  IF p_admission IS NOT NULL THEN
    a := admit(p_call, p_session, p_admission);
    IF a.word IS NOT NULL THEN RETURN; END IF;
  END IF;
  IF cardinality(p_givers) > 0 THEN
    PERFORM take_names(p_names, p_call, p_givers, p_giver_lists);
  ELSE
    -- The unique index is the safety net.
    FOREACH n IN ARRAY p_names LOOP INSERT INTO names VALUES (n, p_call); END LOOP;
  END IF;
  IF p_tenant IS NOT NULL THEN INSERT INTO tools VALUES (p_tenant, p_tool) ON CONFLICT DO NOTHING; END IF;
  INSERT INTO calls VALUES (p_call, p_created, p_lists[1], p_lists[2], p_lists[3], p_lists[4], p_lists[5], p_session, a.token,
    p_intent, p_args);
  INSERT INTO states VALUES (p_call, p_created, p_version, p_attempt, a.token, p_state, p_due, p_searched, p_by_state, p_retain,
    a.similar_to, p_progress, p_entry, p_result);
  a.word := 'done';
END $$;

-- Writes a change of a call if version, attempt and token are the expected ones. Answers 'done', also for the same change again;
-- 'changed' and the call that is in its way; 'gone'; 'unknown_server'; 'late', the call as it is and this clock; or a denial.
-- p_epoch: NULL if no request may be sent after the change and no name is taken. p_names: names that the call must hold.
-- p_intent: NULL if intent and arguments stay. p_similar: the similar call, if there are no conditions. p_lists: the lists of a
-- call whose names are erased; its session stays, because the newest token of a session is that of its calls.
CREATE FUNCTION replace_1(
  p_server bigint, p_standbys text, p_epoch uuid,
  p_names uuid[], p_takes uuid[], p_givers uuid[], p_giver_versions bigint[], p_giver_attempts uuid[], p_giver_lists bigint[],
  p_call uuid, p_session uuid, p_was_version bigint, p_was_attempt uuid, p_was_fencing bigint,
  p_state smallint, p_version bigint, p_attempt uuid, p_due bigint, p_searched text, p_by_state bigint, p_retain bigint,
  p_intent bytea, p_args bytea, p_progress bytea, p_entry bytea, p_result bytea,
  p_admission text,
  p_free_from bigint, p_retakes boolean, p_leaves uuid, p_lists bigint[], p_similar uuid, p_latest bigint,
  OUT a answer
) LANGUAGE plpgsql @secure@ AS $$
DECLARE s record; h uuid;
BEGIN
  IF is_unlocked() THEN RAISE EXCEPTION 'the locks of this transaction were not taken'; END IF;
  IF p_epoch IS NULL AND p_admission IS NULL AND p_intent IS NULL AND p_lists IS NULL AND p_free_from IS NULL AND p_leaves IS NULL THEN
    -- An outcome that changes nothing else, and has nothing in its way, as most: one statement.
    UPDATE states SET version = p_version, attempt = p_attempt, state = p_state, due_at = p_due, tool = p_searched,
        by_state = p_by_state, retain_until = p_retain, similar_to = p_similar, progress = p_progress, result = p_result,
        history = history || p_entry
      WHERE call_id = p_call AND version = p_was_version AND attempt = p_was_attempt
        AND fencing IS NOT DISTINCT FROM p_was_fencing AND octet_length(history) < 4096;
    IF FOUND THEN a.word := 'done'; RETURN; END IF;
  END IF;
  IF cardinality(p_names) > 0 THEN
    h := holder(p_names, p_call, '{}', '{}', '{}');
    IF h IS NOT NULL THEN a := stored('changed', h); RETURN; END IF;
  END IF;
  SELECT version, attempt, fencing, progress, result, octet_length(history) AS length INTO s FROM states WHERE call_id = p_call;
  IF NOT FOUND THEN a := stored('changed', p_call); RETURN; END IF;
  IF s.version <> p_was_version OR s.attempt <> p_was_attempt OR s.fencing IS DISTINCT FROM p_was_fencing THEN
    IF s.progress <> p_progress OR s.result IS DISTINCT FROM p_result THEN a := stored('changed', p_call); RETURN; END IF;
    IF p_epoch IS NOT NULL AND NOT is_known(p_server, p_standbys, p_epoch) THEN a.word := 'unknown_server'; RETURN; END IF;
    UPDATE states SET version = version WHERE call_id = p_call;
    a := stored('done', p_call); RETURN;
  END IF;
  IF cardinality(p_takes) > 0 THEN
    h := holder(p_takes, p_call, p_givers, p_giver_versions, p_giver_attempts);
    IF h IS NOT NULL THEN a := stored('changed', h); RETURN; END IF;
  END IF;
  IF cardinality(p_names) > 0 THEN
    IF (SELECT count(*) FROM names WHERE lookup = ANY (p_names) AND call_id = p_call) < cardinality(p_names) THEN
      a.word := 'gone'; RETURN;
    END IF;
  END IF;
  IF p_epoch IS NOT NULL AND NOT is_known(p_server, p_standbys, p_epoch) THEN a.word := 'unknown_server'; RETURN; END IF;
  IF now_us() > p_latest THEN a := stored('late', p_call); a.at := now_us(); RETURN; END IF;
  IF p_admission IS NOT NULL THEN
    a := admit(p_call, p_session, p_admission);
    IF a.word IS NOT NULL THEN RETURN; END IF;
  ELSE
    a.token := s.fencing; a.similar_to := p_similar;
  END IF;
  IF p_intent IS NOT NULL THEN
    UPDATE calls SET intent = p_intent, args = p_args, fencing = a.token
      WHERE call_id = p_call AND (intent <> p_intent OR args <> p_args OR fencing IS DISTINCT FROM a.token);
  END IF;
  IF p_lists IS NOT NULL THEN
    UPDATE calls SET by_trace = p_lists[2], by_user = p_lists[3] WHERE call_id = p_call;
  END IF;
  IF cardinality(p_takes) > 0 THEN
    PERFORM take_names(ARRAY(SELECT u FROM unnest(p_takes) u WHERE NOT EXISTS (
      SELECT FROM names WHERE lookup = u AND call_id = p_call)), p_call, p_givers, p_giver_lists);
  END IF;
  -- A change writes the whole row, so a long history moves into older parts.
  IF s.length >= 4096 THEN
    INSERT INTO older SELECT p_call, 1 + coalesce((SELECT max(part) FROM older WHERE call_id = p_call), 0), history
      FROM states WHERE call_id = p_call;
  END IF;
  UPDATE states SET version = p_version, attempt = p_attempt, fencing = a.token, state = p_state, due_at = p_due, tool = p_searched,
      by_state = p_by_state, retain_until = p_retain, similar_to = a.similar_to, progress = p_progress, result = p_result,
      history = CASE WHEN s.length >= 4096 THEN p_entry ELSE history || p_entry END
    WHERE call_id = p_call;
  IF p_free_from IS NOT NULL THEN
    -- The store may have lost who has the lock.
    IF p_retakes AND p_free_from > 0 THEN
      INSERT INTO sessions (session, token, lock_call, lock_token, lock_lease, lock_free_from)
        VALUES (p_session, a.token, p_call, a.token, p_free_from, p_free_from)
        ON CONFLICT (session) DO UPDATE SET lock_call = excluded.lock_call, lock_token = excluded.lock_token,
          lock_lease = excluded.lock_lease, lock_free_from = excluded.lock_free_from
        WHERE sessions.lock_call IS NULL;
    END IF;
    UPDATE sessions SET lock_call = CASE WHEN p_free_from > 0 THEN lock_call END, lock_free_from = nullif(p_free_from, 0)
      WHERE session = p_session AND lock_call = p_call AND lock_token = a.token;
  END IF;
  IF p_leaves IS NOT NULL THEN DELETE FROM places WHERE room = p_leaves AND call_id = p_call; END IF;
  a.word := 'done';
END $$;

-- Deletes calls whose own records say that their retention is over, if they have not changed since they were read. Keeps the
-- newest token of a session: p_recent is the age below which the clock alone does not keep tokens rising.
CREATE FUNCTION forget_1(
  p_server bigint, p_standbys text, p_epoch uuid, p_calls uuid[], p_versions bigint[], p_names uuid[], p_holders uuid[],
  p_recent bigint, OUT word text, OUT forgotten bigint
) LANGUAGE plpgsql @secure@ AS $$
DECLARE gone uuid[];
BEGIN
  IF is_unlocked() THEN RAISE EXCEPTION 'the locks of this transaction were not taken'; END IF;
  IF NOT is_known(p_server, p_standbys, p_epoch) THEN word := 'unknown_server'; RETURN; END IF;
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
CREATE FUNCTION prune_1(p_server bigint, p_standbys text, p_epoch uuid, p_now bigint, p_idle bigint, p_limit bigint,
  OUT word text, OUT forgotten bigint) LANGUAGE plpgsql @secure@ AS $$
DECLARE deleted bigint; idle uuid[];
BEGIN
  IF NOT is_known(p_server, p_standbys, p_epoch) THEN word := 'unknown_server'; RETURN; END IF;
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
-- 'changed' or 'unknown_server'. p_epoch: NULL to write to any data.
CREATE FUNCTION put_document_1(
  p_server bigint, p_standbys text, p_epoch uuid, p_digest uuid, p_kind text, p_tenant bytea, p_id bytea, p_version bigint,
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
  IF p_epoch IS NOT NULL AND NOT is_known(p_server, p_standbys, p_epoch) THEN RETURN 'unknown_server'; END IF;
  INSERT INTO documents VALUES (p_digest, p_kind, p_tenant, p_id, p_version, p_state, p_created, p_due, p_retain, p_body)
    ON CONFLICT (digest) DO UPDATE SET version = p_version, state = p_state, created_at = p_created, due_at = p_due,
      retain_until = p_retain, body = p_body;
  RETURN 'done';
END $$;

-- Raises a gateway's beat, unless beats that it knows are missing: a growing beat would hide the loss.
CREATE FUNCTION beat_1(
  p_server bigint, p_standbys text, p_epoch uuid, p_gateway uuid, p_known bigint, p_token bigint, OUT word text, OUT at bigint
) LANGUAGE plpgsql @secure@ AS $$
BEGIN
  IF NOT is_known(p_server, p_standbys, p_epoch) THEN word := 'unknown_server'; RETURN; END IF;
  UPDATE gateways SET beat = beat + 1, token = greatest(token, p_token), seen_at = clock_timestamp()
    WHERE gateway = p_gateway AND beat >= p_known RETURNING beat INTO at;
  IF NOT FOUND THEN
    IF p_known > 0 THEN word := 'lost'; RETURN; END IF;
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
