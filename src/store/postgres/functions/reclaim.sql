-- Removes the permits that have expired, and those whose sessions have ended; sessions that have expired end first.
-- Skips locked rows: a transaction may have a permit pinned. Returns what is used now. The row of the name is locked.
-- Unless it recounts, it only reads the permits when none has ended, and trusts `used`: that is too large when the
-- cleaner or a person has removed a permit. Then it notes until when none can end (the shortest lease has 100 ms), and
-- reads none of them before that time; unless one belongs to a session, which may end at any time.
CREATE OR REPLACE FUNCTION rowlock_reclaim(of_name bytea, recounts boolean) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    at timestamptz := clock_timestamp();
    in_use bigint;
    first_end timestamptz;
    in_session boolean;
BEGIN
    IF NOT recounts THEN
        SELECT k.used, k.reclaim_at INTO in_use, first_end FROM rowlock_lock k WHERE k.name = of_name;
        -- (A later note is from before the clock was set back.)
        IF first_end > at AND first_end <= at + interval '100 milliseconds' THEN
            RETURN in_use;
        END IF;
        SELECT min(CASE WHEN p.grant_id IS NULL THEN 'epoch' WHEN p.session_id IS NULL THEN p.expires_at
                        ELSE LEAST(p.expires_at, COALESCE(
                            (SELECT s.expires_at FROM rowlock_session s WHERE s.id = p.session_id), 'epoch')) END),
               bool_or(p.session_id IS NOT NULL)
        INTO first_end, in_session FROM rowlock_lock p
        WHERE p.name > of_name || decode('00', 'hex') AND p.name < of_name || decode('01', 'hex');
        IF first_end IS NULL OR first_end > at THEN
            UPDATE rowlock_lock SET reclaim_at = LEAST(first_end, at + interval '100 milliseconds')
            WHERE name = of_name AND in_session IS NOT TRUE;
            RETURN in_use;
        END IF;
    END IF;
    UPDATE rowlock_session SET expires_at = NULL WHERE id IN (
        SELECT s.id FROM rowlock_session s
        WHERE s.expires_at <= clock_timestamp() AND s.id IN (
            SELECT p.session_id FROM rowlock_lock p
            WHERE p.name > of_name || decode('00', 'hex') AND p.name < of_name || decode('01', 'hex')
              AND p.session_id IS NOT NULL)
        ORDER BY s.id FOR UPDATE SKIP LOCKED);
    DELETE FROM rowlock_lock WHERE name IN (
        SELECT p.name FROM rowlock_lock p
        WHERE p.name > of_name || decode('00', 'hex') AND p.name < of_name || decode('01', 'hex')
          AND (p.grant_id IS NULL OR p.expires_at <= clock_timestamp()
               OR p.session_id IS NOT NULL AND NOT EXISTS (
                   SELECT FROM rowlock_session s WHERE s.id = p.session_id AND s.expires_at IS NOT NULL))
        ORDER BY p.name FOR UPDATE SKIP LOCKED);
    SELECT COALESCE(sum(p.weight), 0) INTO in_use FROM rowlock_lock p
    WHERE p.name > of_name || decode('00', 'hex') AND p.name < of_name || decode('01', 'hex');
    UPDATE rowlock_lock SET used = in_use WHERE name = of_name AND used <> in_use;
    RETURN in_use;
END $$;
