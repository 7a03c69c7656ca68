-- One row per lock name. The row is the lock; docs/internals/locks.md, "One row".
-- Times are microseconds since 1970-01-01 UTC.
CREATE TABLE IF NOT EXISTS rowlock_lock (
    name        BLOB    NOT NULL PRIMARY KEY,
    grant_id    BLOB,
    fence       INTEGER NOT NULL,
    holder      TEXT,
    acquired_at INTEGER,
    expires_at  INTEGER,
    session_id  BLOB,
    waiters       INTEGER NOT NULL DEFAULT 0,
    next_position INTEGER NOT NULL DEFAULT 1,
    passed        INTEGER NOT NULL DEFAULT 0,
    capacity      INTEGER NOT NULL DEFAULT 0,
    used          INTEGER NOT NULL DEFAULT 0,
    weight        INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT rowlock_lock_name CHECK (length(name) BETWEEN 1 AND 288),
    CONSTRAINT rowlock_lock_fence CHECK (fence BETWEEN 0 AND 4611686018427387903),
    CONSTRAINT rowlock_lock_held CHECK (
        (grant_id IS NULL AND holder IS NULL AND acquired_at IS NULL AND expires_at IS NULL
         AND session_id IS NULL)
        OR (grant_id IS NOT NULL AND length(grant_id) = 16 AND holder IS NOT NULL
            AND acquired_at IS NOT NULL AND expires_at IS NOT NULL)
    )
) STRICT, WITHOUT ROWID;
-- Only the locks of sessions are in it: a grant without a session does not write it.
CREATE INDEX IF NOT EXISTS rowlock_lock_session ON rowlock_lock (session_id) WHERE session_id IS NOT NULL;
