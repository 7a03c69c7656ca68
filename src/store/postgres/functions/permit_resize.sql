-- status: 0 the name has no row; 1 done, before is the capacity until now; 4 another kind: before is its capacity.
CREATE OR REPLACE FUNCTION rowlock_permit_resize(
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
    next_grants := rowlock_grant_permits(of_name, span, false);
END $$;
