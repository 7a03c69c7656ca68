-- Passes a name on to its first waiter whose session is live, or frees it. ended: 0 the name did not have the grant
-- of_grant; 1 that grant had expired; 2 it was live; 3 the row is locked (no error: other statements of the same
-- transaction may have released or granted other names). With left_session, nothing has happened: the lock belongs to
-- this session, which is not live. End that session first. With of_position, that waiter of of_grant leaves; -1:
-- wherever it is. When a grant ends or a waiter leaves, the commit need not wait for the disk: the next waiter holds
-- nothing before it confirms. Otherwise the same transaction may grant a name, which has to be durable.
CREATE OR REPLACE FUNCTION rowlock_pass(
    of_name bytea, of_grant uuid, of_position bigint, span bigint,
    OUT ended integer, OUT next_grant uuid, OUT left_session uuid
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    l record;
    w record;
    at timestamptz;
    is_live boolean;
    gone bigint := 0;
BEGIN
    ended := 0;
    SELECT k.grant_id, k.expires_at, k.session_id, k.waiters, k.passed, k.paused_until INTO l
    FROM rowlock_lock k WHERE k.name = of_name AND k.capacity = 0 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        -- There is no row, or it is locked. Only the wait needs a subtransaction.
        BEGIN
            SELECT k.grant_id, k.expires_at, k.session_id, k.waiters, k.passed, k.paused_until INTO l
            FROM rowlock_lock k WHERE k.name = of_name AND k.capacity = 0 FOR UPDATE;
            IF NOT FOUND THEN
                RETURN;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            ended := 3;
            RETURN;
        END;
    END IF;
    IF of_grant IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF of_position IS NOT NULL AND rowlock_leave(of_name, of_grant, of_position) THEN
        l.waiters := l.waiters - 1;
    END IF;
    at := clock_timestamp();
    is_live := COALESCE(l.expires_at > at, false);
    IF l.grant_id = of_grant THEN
        ended := CASE WHEN is_live THEN 2 ELSE 1 END;
    ELSIF is_live THEN
        IF l.session_id IS NOT NULL AND NOT EXISTS (
            SELECT FROM rowlock_session s WHERE s.id = l.session_id AND s.expires_at > at
        ) THEN
            left_session := l.session_id;
        END IF;
        RETURN;
    END IF;
    IF l.grant_id IS NULL AND l.waiters = 0 THEN
        RETURN;
    END IF;
    IF l.waiters > 0 AND (COALESCE(l.paused_until > at, false)
        OR EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp())) THEN
        -- Nobody is granted the name. Its waiters stay, and the name is orphaned after the pause or the quarantine.
        UPDATE rowlock_lock
        SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL
        WHERE name = of_name AND grant_id IS NOT NULL;
        RETURN;
    END IF;
    IF l.waiters > 0 THEN
        SELECT * INTO w FROM rowlock_first_waiter(of_name, l.passed, at);
        IF FOUND THEN
            DELETE FROM rowlock_waiter p
            WHERE p.name = of_name AND p.position > l.passed AND p.position <= w.place;
            GET DIAGNOSTICS gone = ROW_COUNT;
            at := clock_timestamp();
            UPDATE rowlock_lock
            SET grant_id = w.grant_id, fence = GREATEST(fence + 1, (extract(epoch FROM at) * 1000000)::bigint),
                holder = w.holder, acquired_at = at,
                expires_at = LEAST(at + span * interval '1 microsecond', w.ends),
                session_id = NULL, waiters = GREATEST(waiters - gone, 0), passed = w.place
            WHERE name = of_name;
            PERFORM pg_notify('rowlock_' || replace(w.session_id::text, '-', ''), replace(w.grant_id::text, '-', ''));
            next_grant := w.grant_id;
            RETURN;
        END IF;
        DELETE FROM rowlock_waiter p WHERE p.name = of_name AND p.position > l.passed;
    END IF;
    -- The row is locked, so that nobody joins. (A waiter whose row was deleted by hand was still counted.)
    UPDATE rowlock_lock
    SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL,
        waiters = 0, passed = next_position - 1
    WHERE name = of_name;
END $$;
