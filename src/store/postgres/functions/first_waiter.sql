-- The first waiter after the position `after` whose session is live at the time `at`. (The server puts this into the
-- statement that calls it.) The session is a subquery, so that it is read for one waiter after the other.
CREATE OR REPLACE FUNCTION rowlock_first_waiter(of_name bytea, after bigint, at timestamptz)
RETURNS TABLE (place bigint, grant_id uuid, session_id uuid, holder text, weight bigint, ends timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT w.position, w.grant_id, w.session_id, w.holder, w.weight,
           (SELECT s.expires_at FROM rowlock_session s WHERE s.id = w.session_id)
    FROM rowlock_waiter w
    WHERE w.name = of_name AND w.position > after
      AND (SELECT s.expires_at > at FROM rowlock_session s WHERE s.id = w.session_id)
    ORDER BY w.position LIMIT 1
$$;
