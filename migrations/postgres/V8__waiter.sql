-- One row per waiter for a lock, in the order of the positions; docs: ARCHITECTURE.md, "The queue".
-- All waiters of a name have positions after rowlock_lock.passed and before next_position.
CREATE TABLE IF NOT EXISTS rowlock_waiter (
    name       bytea       NOT NULL,
    position   bigint      NOT NULL,
    grant_id   uuid        NOT NULL,
    session_id uuid        NOT NULL,
    holder     text        NOT NULL,
    joined_at  timestamptz NOT NULL,
    weight     bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (name, position)
);

-- The queue's decisions are functions, because each statement of a volatile function has a snapshot of its own
-- (manual, section 38.7): a statement that reads the waiters is newer than the lock on the row. Both run as their caller, and
-- find the tables by its search path. They wait for a locked row for 20 ms (two such waits at most), and then fail
-- with 55P03. lock_timeout has its old value again at the commit, which may wait for other commits that notify.
-- No sequential scan: a session keeps a plan that was made while the table was small, and would read all waiters with it.

-- Grants a free name without waiters, or makes a waiter. status: 0 the name has no row; 1 granted, number is the fence; 2 waiting, number is the
-- position; 3 the queue is full; 4 no lock: number is the capacity (V9). Only a grant waits for the disk: a waiter that a crash has removed joins again.
CREATE OR REPLACE FUNCTION rowlock_join_v1(
    of_name bytea, of_grant uuid, of_session uuid, in_session boolean, ttl bigint, of_holder text, most bigint,
    OUT status integer, OUT number bigint, OUT ahead bigint, OUT pass boolean
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    l record;
    at timestamptz;
    is_live boolean;
BEGIN
    SELECT k.grant_id, k.fence, k.expires_at, k.session_id, k.waiters, k.next_position, k.passed, k.capacity INTO l
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
    IF l.waiters = 0 AND NOT is_live THEN
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
    pass := NOT is_live OR l.session_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM rowlock_session s WHERE s.id = l.session_id AND s.expires_at > at);
    status := 2;
    IF l.waiters > 0 THEN
        SELECT w.position INTO number FROM rowlock_waiter w
        WHERE w.name = of_name AND w.position > l.passed AND w.grant_id = of_grant;
        IF FOUND THEN
            SELECT count(*) INTO ahead FROM rowlock_waiter w
            WHERE w.name = of_name AND w.position > l.passed AND w.position < number;
            RETURN;
        END IF;
    END IF;
    IF l.waiters >= most THEN
        status := 3;
        RETURN;
    END IF;
    number := l.next_position;
    ahead := l.waiters;
    INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at)
    VALUES (of_name, number, of_grant, of_session, of_holder, at);
    UPDATE rowlock_lock SET waiters = waiters + 1, next_position = next_position + 1 WHERE name = of_name;
END $$;

-- Passes a name on to its first waiter whose session is live, or frees it. status: 0 nothing was to be done; 1 done; 2 the lock belongs to
-- the session left_session, which is not live: end that session first; 3 the row is locked (no error: other statements of the same transaction may
-- have released or granted other names). With of_position, that waiter of of_grant leaves; -1: wherever it is.
-- When a grant ends or a waiter leaves, the commit need not wait for the disk: the next waiter holds nothing before it confirms. Otherwise
-- the same transaction may grant a name, which has to be durable.
CREATE OR REPLACE FUNCTION rowlock_pass_v1(
    of_name bytea, of_grant uuid, of_position bigint, span bigint,
    OUT status integer, OUT was_live boolean, OUT next_grant uuid, OUT next_session uuid, OUT left_session uuid
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    l record;
    w record;
    at timestamptz;
    is_mine boolean;
    is_live boolean;
    gone bigint := 0;
    left_at bigint := of_position;
BEGIN
    status := 0;
    BEGIN
        SELECT k.grant_id, k.fence, k.expires_at, k.session_id, k.waiters, k.next_position, k.passed INTO l
        FROM rowlock_lock k WHERE k.name = of_name AND k.capacity = 0 FOR UPDATE;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    EXCEPTION WHEN lock_not_available THEN
        status := 3;
        RETURN;
    END;
    IF of_grant IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF left_at < 0 THEN
        SELECT p.position INTO left_at FROM rowlock_waiter p
        WHERE p.name = of_name AND p.position > l.passed AND p.grant_id = of_grant;
    END IF;
    IF left_at IS NOT NULL THEN
        DELETE FROM rowlock_waiter p WHERE p.name = of_name AND p.position = left_at AND p.grant_id = of_grant;
        IF FOUND THEN
            l.waiters := l.waiters - 1;
            UPDATE rowlock_lock SET waiters = l.waiters WHERE name = of_name;
        END IF;
    END IF;
    at := clock_timestamp();
    is_mine := COALESCE(l.grant_id = of_grant, false);
    is_live := COALESCE(l.expires_at > at, false);
    IF is_live AND NOT is_mine THEN
        IF l.session_id IS NOT NULL AND NOT EXISTS (
            SELECT FROM rowlock_session s WHERE s.id = l.session_id AND s.expires_at > at
        ) THEN
            status := 2;
            left_session := l.session_id;
        END IF;
        RETURN;
    END IF;
    IF l.grant_id IS NULL AND l.waiters = 0 THEN
        RETURN;
    END IF;
    status := 1;
    was_live := is_mine AND is_live;
    IF l.waiters > 0 THEN
        -- The session is a subquery, so that it is read for one waiter after the other.
        SELECT p.position, p.grant_id, p.session_id, p.holder,
               (SELECT s.expires_at FROM rowlock_session s WHERE s.id = p.session_id) AS ends
        INTO w FROM rowlock_waiter p
        WHERE p.name = of_name AND p.position > l.passed
          AND (SELECT s.expires_at > at FROM rowlock_session s WHERE s.id = p.session_id)
        ORDER BY p.position LIMIT 1;
        IF FOUND THEN
            DELETE FROM rowlock_waiter p
            WHERE p.name = of_name AND p.position > l.passed AND p.position <= w.position;
            GET DIAGNOSTICS gone = ROW_COUNT;
            at := clock_timestamp();
            UPDATE rowlock_lock
            SET grant_id = w.grant_id, fence = GREATEST(fence + 1, (extract(epoch FROM at) * 1000000)::bigint),
                holder = w.holder, acquired_at = at,
                expires_at = LEAST(at + span * interval '1 microsecond', w.ends),
                session_id = NULL, waiters = waiters - gone, passed = w.position
            WHERE name = of_name;
            PERFORM pg_notify('rowlock_' || replace(w.session_id::text, '-', ''), replace(w.grant_id::text, '-', ''));
            next_grant := w.grant_id;
            next_session := w.session_id;
            RETURN;
        END IF;
        DELETE FROM rowlock_waiter p WHERE p.name = of_name AND p.position > l.passed;
        GET DIAGNOSTICS gone = ROW_COUNT;
    END IF;
    UPDATE rowlock_lock
    SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL,
        waiters = waiters - gone, passed = next_position - 1
    WHERE name = of_name;
END $$;
