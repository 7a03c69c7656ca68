-- Grants a free name without waiters, or makes a waiter. status: 0 the name has no row; 1 granted, number is the
-- fence; 2 waiting, number is the position; 3 the queue is full; 4 no lock: number is the capacity. Only a grant
-- waits for the disk: a waiter that a crash has removed joins again.
CREATE OR REPLACE FUNCTION rowlock_join(
    of_name bytea, of_grant uuid, of_session uuid, in_session boolean, ttl bigint, of_holder text, most bigint,
    OUT status integer, OUT number bigint, OUT is_orphaned boolean
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    l record;
    at timestamptz;
    is_live boolean;
    is_paused boolean;
BEGIN
    SELECT k.grant_id, k.fence, k.expires_at, k.session_id, k.waiters, k.capacity, k.paused_until INTO l
    FROM rowlock_lock k WHERE k.name = of_name FOR UPDATE;
    IF NOT FOUND THEN
        status := 0;
        RETURN;
    END IF;
    IF l.capacity <> 0 THEN
        status := 4;
        number := l.capacity;
        RETURN;
    END IF;
    at := clock_timestamp();
    is_live := COALESCE(l.expires_at > at, false);
    IF is_live AND l.grant_id = of_grant THEN
        -- An earlier sending was granted the name. It may have been passed on: then it has to be confirmed.
        UPDATE rowlock_lock
        SET expires_at = GREATEST(expires_at, at + ttl * interval '1 microsecond'),
            session_id = CASE WHEN in_session THEN of_session END
        WHERE name = of_name;
        status := 1;
        number := l.fence;
        RETURN;
    END IF;
    is_paused := COALESCE(l.paused_until > at, false);
    IF l.waiters = 0 AND NOT is_live AND NOT is_paused AND NOT EXISTS (
        SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp()
    ) THEN
        status := 1;
        number := GREATEST(l.fence + 1, (extract(epoch FROM at) * 1000000)::bigint);
        UPDATE rowlock_lock
        SET grant_id = of_grant, fence = number, holder = of_holder, acquired_at = at,
            expires_at = at + ttl * interval '1 microsecond',
            session_id = CASE WHEN in_session THEN of_session END
        WHERE name = of_name;
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    is_orphaned := NOT is_paused AND (NOT is_live OR l.session_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM rowlock_session s WHERE s.id = l.session_id AND s.expires_at > at));
    number := rowlock_queue(of_name, of_grant, of_session, of_holder, 0, most);
    status := CASE WHEN number IS NULL THEN 3 ELSE 2 END;
END $$;
