-- Grants permits to the first waiters, as many as fit, but at most 100: their windows begin now. The row of the name
-- is locked, and is written once.
CREATE OR REPLACE FUNCTION rowlock_grant_permits(
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
    SELECT k.waiters, k.used, k.capacity, k.passed, k.next_position, k.fence, k.paused_until INTO l
    FROM rowlock_lock k WHERE k.name = of_name;
    IF l.waiters <= 0 THEN
        IF recounts AND l.used > 0 THEN
            PERFORM rowlock_reclaim(of_name, true);
        END IF;
        RETURN;
    END IF;
    IF l.paused_until > at OR EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp()) THEN
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
            l.used := rowlock_reclaim(of_name, recounts) + granted;
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
    SELECT rowlock_permit_name(of_name, g.grant_id), g.grant_id, g.fence, g.holder, at, g.ends, l.capacity, g.weight
    FROM unnest(next_grants, fences, holders, ends, weights) AS g (grant_id, fence, holder, ends, weight);
    UPDATE rowlock_lock
    SET used = l.used, fence = l.fence, passed = last,
        waiters = CASE WHEN seen < most THEN 0 ELSE GREATEST(l.waiters - gone, 0) END
    WHERE name = of_name;
END $$;
