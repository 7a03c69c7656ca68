-- Finds the waiter of of_grant, or puts it at the end of the queue. Returns its position; NULL: the queue is full.
-- The row of the name is locked.
CREATE OR REPLACE FUNCTION rowlock_queue(
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
