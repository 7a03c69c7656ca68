-- status: 0 the name has no row; 1 granted, number is the fence; 2 waiting, number is the position; 3 the queue is
-- full; 4 another kind or capacity: number is the capacity.
CREATE OR REPLACE FUNCTION rowlock_permit_join(
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
    SELECT k.waiters, k.used, k.capacity, k.passed, k.next_position, k.paused_until INTO l
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
    WHERE name = rowlock_permit_name(of_name, of_grant)
      AND grant_id = of_grant AND expires_at > clock_timestamp()
    RETURNING fence INTO number;
    IF FOUND THEN
        status := 1;
        RETURN;
    END IF;
    in_use := l.used;
    -- One that has ended: its row is in the way.
    IF EXISTS (
        SELECT FROM rowlock_lock k WHERE k.name = rowlock_permit_name(of_name, of_grant)
    ) THEN
        in_use := rowlock_reclaim(of_name, false);
        IF EXISTS (
            SELECT FROM rowlock_lock k WHERE k.name = rowlock_permit_name(of_name, of_grant)
        ) THEN
            RAISE lock_not_available;
        END IF;
    END IF;
    IF l.waiters = 0 AND (l.paused_until IS NULL OR l.paused_until <= clock_timestamp())
        AND NOT EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp()) THEN
        IF in_use + of_weight > l.capacity THEN
            in_use := rowlock_reclaim(of_name, false);
        END IF;
        IF in_use + of_weight <= l.capacity THEN
            status := 1;
            number := rowlock_make_permit(of_name, of_grant, of_holder, of_weight, until_,
                CASE WHEN in_session THEN of_session END);
            RETURN;
        END IF;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    number := rowlock_queue(of_name, of_grant, of_session, of_holder, of_weight, most);
    status := CASE WHEN number IS NULL THEN 3 ELSE 2 END;
END $$;
