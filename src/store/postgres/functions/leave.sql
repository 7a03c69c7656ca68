-- Removes the waiter of of_grant at of_position; -1: wherever it stands. Returns whether it was there. The row of the
-- name is locked.
CREATE OR REPLACE FUNCTION rowlock_leave(of_name bytea, of_grant uuid, of_position bigint) RETURNS boolean
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
