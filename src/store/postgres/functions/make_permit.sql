-- Makes a permit. Returns its fence. The row of the name is locked, and the permit fits.
CREATE OR REPLACE FUNCTION rowlock_make_permit(
    of_name bytea, of_grant uuid, of_holder text, of_weight bigint, until_ timestamptz, of_session uuid
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at timestamptz := clock_timestamp();
    number bigint;
    of_capacity bigint;
BEGIN
    -- Readers share the fence of the last write.
    UPDATE rowlock_lock
    SET used = used + of_weight,
        fence = CASE WHEN capacity = 2147483647 AND of_weight < capacity THEN fence
                     ELSE GREATEST(fence + 1, (extract(epoch FROM at) * 1000000)::bigint) END
    WHERE name = of_name RETURNING fence, capacity INTO number, of_capacity;
    INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, session_id, capacity, weight)
    VALUES (rowlock_permit_name(of_name, of_grant),
            of_grant, number, of_holder, at, until_, of_session, of_capacity, of_weight);
    RETURN number;
END $$;
