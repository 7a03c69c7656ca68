-- status: 0 the permit is gone or has expired; 1 done, number is the fence; 2 it does not fit; 3 it has another
-- weight, and another fence: number.
CREATE OR REPLACE FUNCTION rowlock_permit_weigh(
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
    PERFORM FROM rowlock_lock k WHERE k.name = rowlock_permit_name(of_name, of_grant) FOR UPDATE NOWAIT;
    SELECT k.used, k.capacity, k.paused_until INTO l FROM rowlock_lock k WHERE k.name = of_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT k.name, k.weight, k.fence INTO p FROM rowlock_lock k
    WHERE k.name = rowlock_permit_name(of_name, of_grant)
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
            in_use := rowlock_reclaim(of_name, false);
        END IF;
        IF in_use - p.weight + new_weight > l.capacity OR l.paused_until > clock_timestamp() OR EXISTS (
            SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp()
        ) THEN
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
    next_grants := rowlock_grant_permits(of_name, span, false);
END $$;
