-- The permit and the waiter of of_grant are removed (of_position as in rowlock_pass), then waiters are granted.
-- ended: 0 there was no permit; 1 it had expired; 2 it was live; 3 a row is locked, and nothing has happened.
CREATE OR REPLACE FUNCTION rowlock_permit_pass(
    of_name bytea, of_grant uuid, of_position bigint, span bigint,
    OUT ended integer, OUT next_grants uuid[]
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    p record;
BEGIN
    ended := 0;
    -- Before the name is locked, and without waiting: a transaction may have the permit pinned. Who has locked the
    -- name waits for no permit but its own.
    PERFORM FROM rowlock_lock k
    WHERE of_grant IS NOT NULL AND k.name = rowlock_permit_name(of_name, of_grant) FOR UPDATE NOWAIT;
    PERFORM FROM rowlock_lock k WHERE k.name = of_name AND k.capacity <> 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF of_grant IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        DELETE FROM rowlock_lock k
        WHERE k.name = rowlock_permit_name(of_name, of_grant) AND k.grant_id = of_grant
        RETURNING k.weight, k.expires_at > clock_timestamp() AS is_live INTO p;
        IF FOUND THEN
            ended := CASE WHEN p.is_live THEN 2 ELSE 1 END;
            UPDATE rowlock_lock SET used = GREATEST(used - p.weight, 0) WHERE name = of_name;
        END IF;
        IF of_position IS NOT NULL THEN
            PERFORM rowlock_leave(of_name, of_grant, of_position);
        END IF;
    END IF;
    next_grants := rowlock_grant_permits(of_name, span, of_grant IS NULL);
EXCEPTION WHEN lock_not_available THEN
    ended := 3;
    next_grants := NULL;
END $$;
