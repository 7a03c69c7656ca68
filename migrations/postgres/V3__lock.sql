-- One row per lock name. The row is the lock; docs/internals/locks.md, "One row".
-- expires_at has no index and the pages are half empty on purpose: every grant,
-- renewal and release then stays on its page (a HOT update).
CREATE TABLE IF NOT EXISTS rowlock_lock (
    name        bytea       NOT NULL PRIMARY KEY,
    grant_id    uuid,
    fence       bigint      NOT NULL,
    holder      text,
    acquired_at timestamptz,
    expires_at  timestamptz,
    session_id  uuid,
    recall      uuid,
    waiters       bigint       NOT NULL DEFAULT 0,
    next_position bigint       NOT NULL DEFAULT 1,
    passed        bigint       NOT NULL DEFAULT 0,
    capacity      bigint       NOT NULL DEFAULT 0,
    used          bigint       NOT NULL DEFAULT 0,
    weight        bigint       NOT NULL DEFAULT 0,
    CONSTRAINT rowlock_lock_name CHECK (octet_length(name) BETWEEN 1 AND 288),
    CONSTRAINT rowlock_lock_fence CHECK (fence BETWEEN 0 AND 4611686018427387903),
    CONSTRAINT rowlock_lock_held CHECK (
        (grant_id IS NULL AND holder IS NULL AND acquired_at IS NULL AND expires_at IS NULL
         AND session_id IS NULL AND recall IS NULL)
        OR (grant_id IS NOT NULL AND holder IS NOT NULL
            AND acquired_at IS NOT NULL AND isfinite(acquired_at)
            AND expires_at IS NOT NULL AND isfinite(expires_at))
    )
) WITH (fillfactor = 50);
-- Only the locks of sessions are in it: a grant without a session does not write it.
CREATE INDEX IF NOT EXISTS rowlock_lock_session ON rowlock_lock (session_id, name) WHERE session_id IS NOT NULL;
