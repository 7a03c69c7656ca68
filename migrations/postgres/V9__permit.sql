-- Read/write locks and semaphores; docs/internals/permits.md. A lock's row has its capacity (0: a plain lock; 2147483647: a read/write
-- lock) and the used part of it. Each permit is a row of rowlock_lock too, with its weight and the capacity of then, named by the lock's name, NUL,
-- and its grant id in hexadecimal digits.
-- Functions for the reasons that V8__waiter.sql gives: each locks the row of the name before it decides, and each of its statements has a newer snapshot
-- than that lock.

-- The name of a permit. (The server puts this into the statement that calls it.)
CREATE OR REPLACE FUNCTION rowlock_permit_name_v1(of_name bytea, of_grant uuid) RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT of_name || decode('00', 'hex') || replace(of_grant::text, '-', '')::bytea
$$;

-- Removes the permits that have expired, and those whose sessions have ended; sessions that have expired end first. Skips locked rows: a transaction
-- may have a permit pinned. Returns what is used now. The row of the name is locked. Unless it recounts, it only reads the permits when none has
-- ended, and trusts `used`: that is too large when the cleaner or a person has removed a permit.
CREATE OR REPLACE FUNCTION rowlock_reclaim_v1(of_name bytea, recounts boolean) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at timestamptz := clock_timestamp();
    in_use bigint;
BEGIN
    IF NOT recounts AND NOT EXISTS (
        SELECT FROM rowlock_lock p
        WHERE p.name > of_name || decode('00', 'hex') AND p.name < of_name || decode('01', 'hex')
          AND (p.grant_id IS NULL OR p.expires_at <= at
               OR p.session_id IS NOT NULL AND NOT EXISTS (
                   SELECT FROM rowlock_session s WHERE s.id = p.session_id AND s.expires_at > at))
    ) THEN
        SELECT k.used INTO in_use FROM rowlock_lock k WHERE k.name = of_name;
        RETURN in_use;
    END IF;
    UPDATE rowlock_session SET expires_at = NULL WHERE id IN (
        SELECT s.id FROM rowlock_session s
        WHERE s.expires_at <= clock_timestamp() AND s.id IN (
            SELECT p.session_id FROM rowlock_lock p
            WHERE p.name > of_name || decode('00', 'hex') AND p.name < of_name || decode('01', 'hex') AND p.session_id IS NOT NULL)
        ORDER BY s.id FOR UPDATE SKIP LOCKED);
    DELETE FROM rowlock_lock WHERE name IN (
        SELECT p.name FROM rowlock_lock p
        WHERE p.name > of_name || decode('00', 'hex') AND p.name < of_name || decode('01', 'hex')
          AND (p.grant_id IS NULL OR p.expires_at <= clock_timestamp()
               OR p.session_id IS NOT NULL AND NOT EXISTS (
                   SELECT FROM rowlock_session s WHERE s.id = p.session_id AND s.expires_at IS NOT NULL))
        ORDER BY p.name FOR UPDATE SKIP LOCKED);
    SELECT COALESCE(sum(p.weight), 0) INTO in_use FROM rowlock_lock p
    WHERE p.name > of_name || decode('00', 'hex') AND p.name < of_name || decode('01', 'hex');
    UPDATE rowlock_lock SET used = in_use WHERE name = of_name AND used <> in_use;
    RETURN in_use;
END $$;

-- Makes a permit. Returns its fence. The row of the name is locked, and the permit fits.
CREATE OR REPLACE FUNCTION rowlock_make_permit_v1(
    of_name bytea, of_grant uuid, of_holder text, of_weight bigint, until_ timestamptz, of_session uuid
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at timestamptz := clock_timestamp();
    number bigint;
    of_capacity bigint;
BEGIN
    -- Readers share the fence of the last write.
    UPDATE rowlock_lock
    SET used = used + of_weight,
        fence = CASE WHEN capacity = 2147483647 AND of_weight < capacity THEN fence
                     ELSE GREATEST(fence + 1, (extract(epoch FROM at) * 1000000)::bigint) END
    WHERE name = of_name RETURNING fence, capacity INTO number, of_capacity;
    INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, session_id, capacity, weight)
    VALUES (rowlock_permit_name_v1(of_name, of_grant),
            of_grant, number, of_holder, at, until_, of_session, of_capacity, of_weight);
    RETURN number;
END $$;

-- Grants permits to the first waiters, as many as fit, but at most 100: their windows begin now. The row of the name is locked, and is written once.
CREATE OR REPLACE FUNCTION rowlock_grant_permits_v1(
    of_name bytea, span bigint, recounts boolean, OUT next_grants uuid[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    most CONSTANT integer := 100;
    at CONSTANT timestamptz := clock_timestamp();
    l record;
    w record;
    seen integer := 0;
    last bigint;
    gone bigint;
    granted bigint := 0;
    is_reclaimed boolean := false;
    holders text[] := '{}';
    weights bigint[] := '{}';
    fences bigint[] := '{}';
    ends timestamptz[] := '{}';
BEGIN
    next_grants := '{}';
    SELECT k.waiters, k.used, k.capacity, k.passed, k.next_position, k.fence INTO l FROM rowlock_lock k WHERE k.name = of_name;
    IF l.waiters <= 0 THEN
        IF recounts AND l.used > 0 THEN
            PERFORM rowlock_reclaim_v1(of_name, true);
        END IF;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp()) THEN
        RETURN;
    END IF;
    last := l.passed;
    FOR w IN
        SELECT p.position, p.grant_id, p.session_id, p.holder, p.weight,
               (SELECT s.expires_at FROM rowlock_session s WHERE s.id = p.session_id) AS ends
        FROM rowlock_waiter p
        WHERE p.name = of_name AND p.position > l.passed
          AND (SELECT s.expires_at > at FROM rowlock_session s WHERE s.id = p.session_id)
        ORDER BY p.position LIMIT 100
    LOOP
        seen := seen + 1;
        IF l.used + w.weight > l.capacity AND NOT is_reclaimed THEN
            l.used := rowlock_reclaim_v1(of_name, recounts) + granted;
            is_reclaimed := true;
        END IF;
        IF l.used + w.weight > l.capacity THEN
            -- It keeps back those behind it.
            seen := most;
            EXIT;
        END IF;
        -- Readers share the fence of the last write.
        IF l.capacity <> 2147483647 OR w.weight >= l.capacity THEN
            l.fence := GREATEST(l.fence + 1, (extract(epoch FROM at) * 1000000)::bigint);
        END IF;
        l.used := l.used + w.weight;
        granted := granted + w.weight;
        last := w.position;
        next_grants := next_grants || w.grant_id;
        holders := holders || w.holder;
        weights := weights || w.weight;
        fences := fences || l.fence;
        ends := ends || LEAST(at + span * interval '1 microsecond', w.ends);
        PERFORM pg_notify('rowlock_' || replace(w.session_id::text, '-', ''), replace(w.grant_id::text, '-', ''));
    END LOOP;
    IF seen < most THEN
        -- All others are dead.
        last := l.next_position - 1;
    END IF;
    DELETE FROM rowlock_waiter p WHERE p.name = of_name AND p.position > l.passed AND p.position <= last;
    GET DIAGNOSTICS gone = ROW_COUNT;
    -- (A waiter whose row was deleted by hand was still counted.)
    IF gone = 0 AND last = l.passed AND seen >= most THEN
        RETURN;
    END IF;
    INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, capacity, weight)
    SELECT rowlock_permit_name_v1(of_name, g.grant_id), g.grant_id, g.fence, g.holder, at, g.ends, l.capacity, g.weight
    FROM unnest(next_grants, fences, holders, ends, weights) AS g (grant_id, fence, holder, ends, weight);
    UPDATE rowlock_lock
    SET used = l.used, fence = l.fence, passed = last,
        waiters = CASE WHEN seen < most THEN 0 ELSE GREATEST(l.waiters - gone, 0) END
    WHERE name = of_name;
END $$;

-- status: 0 the name has no row; 1 granted, number is the fence; 2 waiting, number is the position; 3 the queue is full;
-- 4 another kind or capacity: number is the capacity.
CREATE OR REPLACE FUNCTION rowlock_permit_join_v1(
    of_name bytea, of_grant uuid, of_session uuid, in_session boolean, ttl bigint, of_holder text, most bigint,
    of_capacity bigint, of_weight bigint,
    OUT status integer, OUT number bigint
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    l record;
    until_ timestamptz;
    in_use bigint;
BEGIN
    SELECT k.waiters, k.used, k.capacity, k.passed, k.next_position INTO l
    FROM rowlock_lock k WHERE k.name = of_name FOR UPDATE;
    IF NOT FOUND THEN
        status := 0;
        RETURN;
    END IF;
    IF l.capacity <> of_capacity THEN
        status := 4;
        number := l.capacity;
        RETURN;
    END IF;
    until_ := clock_timestamp() + ttl * interval '1 microsecond';
    -- An earlier sending was granted a permit. It may have been passed on: then it has to be confirmed.
    UPDATE rowlock_lock
    SET expires_at = GREATEST(expires_at, until_), session_id = CASE WHEN in_session THEN of_session END
    WHERE name = rowlock_permit_name_v1(of_name, of_grant)
      AND grant_id = of_grant AND expires_at > clock_timestamp()
    RETURNING fence INTO number;
    IF FOUND THEN
        status := 1;
        RETURN;
    END IF;
    in_use := l.used;
    -- One that has ended: its row is in the way.
    IF EXISTS (
        SELECT FROM rowlock_lock k WHERE k.name = rowlock_permit_name_v1(of_name, of_grant)
    ) THEN
        in_use := rowlock_reclaim_v1(of_name, false);
        IF EXISTS (
            SELECT FROM rowlock_lock k WHERE k.name = rowlock_permit_name_v1(of_name, of_grant)
        ) THEN
            RAISE lock_not_available;
        END IF;
    END IF;
    IF l.waiters = 0 AND NOT EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp()) THEN
        IF in_use + of_weight > l.capacity THEN
            in_use := rowlock_reclaim_v1(of_name, false);
        END IF;
        IF in_use + of_weight <= l.capacity THEN
            status := 1;
            number := rowlock_make_permit_v1(of_name, of_grant, of_holder, of_weight, until_,
                CASE WHEN in_session THEN of_session END);
            RETURN;
        END IF;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    number := rowlock_queue_v1(of_name, of_grant, of_session, of_holder, of_weight, most);
    status := CASE WHEN number IS NULL THEN 3 ELSE 2 END;
END $$;

-- The permit and the waiter of of_grant are removed (of_position as in rowlock_pass_v1), then waiters are granted.
-- ended: 0 there was no permit; 1 it had expired; 2 it was live; 3 a row is locked, and nothing has happened.
CREATE OR REPLACE FUNCTION rowlock_permit_pass_v1(
    of_name bytea, of_grant uuid, of_position bigint, span bigint,
    OUT ended integer, OUT next_grants uuid[]
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    p record;
BEGIN
    ended := 0;
    -- Before the name is locked, and without waiting: a transaction may have the permit pinned. Who has locked the name waits for no permit but its own.
    PERFORM FROM rowlock_lock k
    WHERE of_grant IS NOT NULL AND k.name = rowlock_permit_name_v1(of_name, of_grant) FOR UPDATE NOWAIT;
    PERFORM FROM rowlock_lock k WHERE k.name = of_name AND k.capacity <> 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF of_grant IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        DELETE FROM rowlock_lock k
        WHERE k.name = rowlock_permit_name_v1(of_name, of_grant) AND k.grant_id = of_grant
        RETURNING k.weight, k.expires_at > clock_timestamp() AS is_live INTO p;
        IF FOUND THEN
            ended := CASE WHEN p.is_live THEN 2 ELSE 1 END;
            UPDATE rowlock_lock SET used = GREATEST(used - p.weight, 0) WHERE name = of_name;
        END IF;
        IF of_position IS NOT NULL THEN
            PERFORM rowlock_leave_v1(of_name, of_grant, of_position);
        END IF;
    END IF;
    next_grants := rowlock_grant_permits_v1(of_name, span, of_grant IS NULL);
EXCEPTION WHEN lock_not_available THEN
    ended := 3;
    next_grants := NULL;
END $$;

-- status: 0 the permit is gone or has expired; 1 done, number is the fence; 2 it does not fit; 3 it has another weight, and another fence: number.
CREATE OR REPLACE FUNCTION rowlock_permit_weigh_v1(
    of_name bytea, of_grant uuid, of_fence bigint, new_weight bigint, span bigint,
    OUT status integer, OUT number bigint, OUT next_grants uuid[]
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    l record;
    p record;
    in_use bigint;
BEGIN
    status := 0;
    -- As when it ends.
    PERFORM FROM rowlock_lock k WHERE k.name = rowlock_permit_name_v1(of_name, of_grant) FOR UPDATE NOWAIT;
    SELECT k.used, k.capacity INTO l FROM rowlock_lock k WHERE k.name = of_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT k.name, k.weight, k.fence INTO p FROM rowlock_lock k
    WHERE k.name = rowlock_permit_name_v1(of_name, of_grant)
      AND k.grant_id = of_grant AND k.expires_at > clock_timestamp()
      AND (k.session_id IS NULL
           OR (SELECT s.expires_at > clock_timestamp() FROM rowlock_session s WHERE s.id = k.session_id))
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    number := p.fence;
    IF p.weight <> new_weight AND p.fence <> of_fence THEN
        status := 3;
        RETURN;
    END IF;
    in_use := l.used;
    IF new_weight > p.weight THEN
        IF in_use - p.weight + new_weight > l.capacity THEN
            in_use := rowlock_reclaim_v1(of_name, false);
        END IF;
        IF in_use - p.weight + new_weight > l.capacity OR EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp()) THEN
            status := 2;
            RETURN;
        END IF;
    END IF;
    -- Also when it has that weight: a downgrade that was given up may still arrive.
    IF new_weight >= p.weight AND new_weight > 1 THEN
        number := GREATEST(p.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
        UPDATE rowlock_lock SET fence = GREATEST(fence + 1, number) WHERE name = of_name RETURNING fence INTO number;
    END IF;
    UPDATE rowlock_lock SET weight = new_weight, fence = number WHERE name = p.name;
    IF NOT FOUND THEN
        -- Its session has ended meanwhile, and it was reclaimed.
        RETURN;
    END IF;
    status := 1;
    UPDATE rowlock_lock SET used = GREATEST(in_use - p.weight + new_weight, 0) WHERE name = of_name;
    next_grants := rowlock_grant_permits_v1(of_name, span, false);
END $$;

-- status: 0 the name has no row; 1 done, before is the capacity until now; 4 another kind: before is its capacity.
CREATE OR REPLACE FUNCTION rowlock_permit_resize_v1(
    of_name bytea, of_capacity bigint, span bigint,
    OUT status integer, OUT before bigint, OUT next_grants uuid[]
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    gone bigint;
BEGIN
    SELECT k.capacity INTO before FROM rowlock_lock k WHERE k.name = of_name FOR UPDATE;
    IF NOT FOUND THEN
        status := 0;
        RETURN;
    END IF;
    IF before NOT BETWEEN 1 AND 2147483646 THEN
        status := 4;
        RETURN;
    END IF;
    status := 1;
    -- Those that are too heavy now never fit.
    DELETE FROM rowlock_waiter w WHERE w.name = of_name AND w.weight > of_capacity;
    GET DIAGNOSTICS gone = ROW_COUNT;
    -- The cleaner takes the fence for the last use.
    UPDATE rowlock_lock
    SET capacity = of_capacity, waiters = GREATEST(waiters - gone, 0),
        fence = GREATEST(fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
    WHERE name = of_name;
    next_grants := rowlock_grant_permits_v1(of_name, span, false);
END $$;
