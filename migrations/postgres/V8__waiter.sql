-- One row per waiter for a lock, in the order of the positions; docs/internals/queue.md.
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
-- (manual, section 38.7): a statement that reads the waiters is newer than the lock on the row. They run as their caller, and
-- find the tables by its search path. They wait for a locked row for 20 ms (two such waits at most), and then fail
-- with 55P03. lock_timeout has its old value again at the commit, which may wait for other commits that notify.
-- No sequential scan: a session keeps a plan that was made while the table was small, and would read all waiters with it.
-- One plan for all values: with the statistics of a short queue, the server would make a new plan for each call of a function. A pass then takes 70 to
-- 140 us instead of 40.
-- A function without settings of its own is called by the others only, and has theirs.

-- The first waiter after the position `after` whose session is live at the time `at`. (The server puts this into the statement that calls it.)
-- The session is a subquery, so that it is read for one waiter after the other.
CREATE OR REPLACE FUNCTION rowlock_first_waiter_v1(of_name bytea, after bigint, at timestamptz)
RETURNS TABLE (place bigint, grant_id uuid, session_id uuid, holder text, weight bigint, ends timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT w.position, w.grant_id, w.session_id, w.holder, w.weight,
           (SELECT s.expires_at FROM rowlock_session s WHERE s.id = w.session_id)
    FROM rowlock_waiter w
    WHERE w.name = of_name AND w.position > after
      AND (SELECT s.expires_at > at FROM rowlock_session s WHERE s.id = w.session_id)
    ORDER BY w.position LIMIT 1
$$;

-- Finds the waiter of of_grant, or puts it at the end of the queue. Returns its position; NULL: the queue is full. The row of the name is locked.
CREATE OR REPLACE FUNCTION rowlock_queue_v1(
    of_name bytea, of_grant uuid, of_session uuid, of_holder text, of_weight bigint, most bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    l record;
    place bigint;
BEGIN
    SELECT k.waiters, k.next_position, k.passed INTO l FROM rowlock_lock k WHERE k.name = of_name;
    IF l.waiters > 0 THEN
        SELECT w.position INTO place FROM rowlock_waiter w
        WHERE w.name = of_name AND w.position > l.passed AND w.grant_id = of_grant;
        IF FOUND THEN
            RETURN place;
        END IF;
    END IF;
    IF l.waiters >= most THEN
        RETURN NULL;
    END IF;
    INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at, weight)
    VALUES (of_name, l.next_position, of_grant, of_session, of_holder, clock_timestamp(), of_weight);
    UPDATE rowlock_lock SET waiters = waiters + 1, next_position = next_position + 1 WHERE name = of_name;
    RETURN l.next_position;
END $$;

-- Removes the waiter of of_grant at of_position; -1: wherever it stands. Returns whether it was there. The row of the name is locked.
CREATE OR REPLACE FUNCTION rowlock_leave_v1(of_name bytea, of_grant uuid, of_position bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF of_position < 0 THEN
        SELECT w.position INTO of_position FROM rowlock_waiter w
        WHERE w.name = of_name AND w.grant_id = of_grant
          AND w.position > (SELECT k.passed FROM rowlock_lock k WHERE k.name = of_name);
    END IF;
    DELETE FROM rowlock_waiter w WHERE w.name = of_name AND w.position = of_position AND w.grant_id = of_grant;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE rowlock_lock SET waiters = GREATEST(waiters - 1, 0) WHERE name = of_name;
    RETURN true;
END $$;

-- Grants a free name without waiters, or makes a waiter. status: 0 the name has no row; 1 granted, number is the fence; 2 waiting, number is the
-- position; 3 the queue is full; 4 no lock: number is the capacity. Only a grant waits for the disk: a waiter that a crash has removed joins again.
CREATE OR REPLACE FUNCTION rowlock_join_v1(
    of_name bytea, of_grant uuid, of_session uuid, in_session boolean, ttl bigint, of_holder text, most bigint,
    OUT status integer, OUT number bigint, OUT is_orphaned boolean
) LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' SET enable_seqscan = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    l record;
    at timestamptz;
    is_live boolean;
BEGIN
    SELECT k.grant_id, k.fence, k.expires_at, k.session_id, k.recall, k.waiters, k.capacity INTO l
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
            session_id = CASE WHEN in_session THEN of_session END, recall = NULL
        WHERE name = of_name;
        status := 1;
        number := l.fence;
        RETURN;
    END IF;
    IF l.waiters = 0 AND NOT is_live AND NOT EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp()) THEN
        status := 1;
        number := GREATEST(l.fence + 1, (extract(epoch FROM at) * 1000000)::bigint);
        UPDATE rowlock_lock
        SET grant_id = of_grant, fence = number, holder = of_holder, acquired_at = at,
            expires_at = at + ttl * interval '1 microsecond',
            session_id = CASE WHEN in_session THEN of_session END, recall = NULL
        WHERE name = of_name;
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    is_orphaned := NOT is_live OR l.session_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM rowlock_session s WHERE s.id = l.session_id AND s.expires_at > at);
    number := rowlock_queue_v1(of_name, of_grant, of_session, of_holder, 0, most);
    status := CASE WHEN number IS NULL THEN 3 ELSE 2 END;
    IF status = 2 AND is_live AND l.recall IS NOT NULL THEN
        -- Its client keeps the lease after a release: it is called back.
        PERFORM pg_notify('rowlock_' || replace(l.recall::text, '-', ''), 'recall ' || encode(of_name, 'hex'));
    END IF;
END $$;

-- Passes a name on to its first waiter whose session is live, or frees it. ended: 0 the name did not have the grant of_grant; 1 that grant had
-- expired; 2 it was live; 3 the row is locked (no error: other statements of the same transaction may have released or granted other names).
-- With left_session, nothing has happened: the lock belongs to this session, which is not live. End that session first. With of_position, that waiter of of_grant leaves; -1: wherever it is.
-- When a grant ends or a waiter leaves, the commit need not wait for the disk: the next waiter holds nothing before it confirms. Otherwise
-- the same transaction may grant a name, which has to be durable.
CREATE OR REPLACE FUNCTION rowlock_pass_v1(
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
    SELECT k.grant_id, k.expires_at, k.session_id, k.waiters, k.passed INTO l
    FROM rowlock_lock k WHERE k.name = of_name AND k.capacity = 0 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        -- There is no row, or it is locked. Only the wait needs a subtransaction.
        BEGIN
            SELECT k.grant_id, k.expires_at, k.session_id, k.waiters, k.passed INTO l
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
    IF of_position IS NOT NULL AND rowlock_leave_v1(of_name, of_grant, of_position) THEN
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
    IF l.waiters > 0 AND EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp()) THEN
        -- Nobody is granted the name. Its waiters stay, and the name is orphaned until the end of the quarantine.
        UPDATE rowlock_lock
        SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL, recall = NULL
        WHERE name = of_name AND grant_id IS NOT NULL;
        RETURN;
    END IF;
    IF l.waiters > 0 THEN
        SELECT * INTO w FROM rowlock_first_waiter_v1(of_name, l.passed, at);
        IF FOUND THEN
            DELETE FROM rowlock_waiter p
            WHERE p.name = of_name AND p.position > l.passed AND p.position <= w.place;
            GET DIAGNOSTICS gone = ROW_COUNT;
            at := clock_timestamp();
            UPDATE rowlock_lock
            SET grant_id = w.grant_id, fence = GREATEST(fence + 1, (extract(epoch FROM at) * 1000000)::bigint),
                holder = w.holder, acquired_at = at,
                expires_at = LEAST(at + span * interval '1 microsecond', w.ends),
                session_id = NULL, recall = NULL, waiters = GREATEST(waiters - gone, 0), passed = w.place
            WHERE name = of_name;
            PERFORM pg_notify('rowlock_' || replace(w.session_id::text, '-', ''), replace(w.grant_id::text, '-', ''));
            next_grant := w.grant_id;
            RETURN;
        END IF;
        DELETE FROM rowlock_waiter p WHERE p.name = of_name AND p.position > l.passed;
    END IF;
    -- The row is locked, so that nobody joins. (A waiter whose row was deleted by hand was still counted.)
    UPDATE rowlock_lock
    SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL, recall = NULL,
        waiters = 0, passed = next_position - 1
    WHERE name = of_name;
END $$;
