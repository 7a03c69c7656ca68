-- One row per lock name. The row is the lock; docs/internals/locks.md, "One row".
-- Times are UTC. DDL commits by itself here: one rerunnable statement a file.
-- The queue of the name: waiters is how many rows rowlock_waiter has, next_position the next one to give; all waiters are after passed.
CREATE TABLE IF NOT EXISTS rowlock_lock (
    name          varbinary(288) NOT NULL PRIMARY KEY,
    grant_id      binary(16),
    fence         bigint         NOT NULL,
    holder        varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    acquired_at   datetime(6),
    expires_at    datetime(6),
    session_id    binary(16),
    waiters       bigint         NOT NULL DEFAULT 0,
    next_position bigint         NOT NULL DEFAULT 1,
    passed        bigint         NOT NULL DEFAULT 0,
    capacity      bigint         NOT NULL DEFAULT 0,
    used          bigint         NOT NULL DEFAULT 0,
    weight        bigint         NOT NULL DEFAULT 0,
    KEY rowlock_lock_session (session_id),
    CONSTRAINT rowlock_lock_name CHECK (octet_length(name) BETWEEN 1 AND 288),
    CONSTRAINT rowlock_lock_fence CHECK (fence BETWEEN 0 AND 4611686018427387903),
    CONSTRAINT rowlock_lock_held CHECK (
        (grant_id IS NULL AND holder IS NULL AND acquired_at IS NULL AND expires_at IS NULL
         AND session_id IS NULL)
        OR (grant_id IS NOT NULL AND holder IS NOT NULL
            AND acquired_at IS NOT NULL AND expires_at IS NOT NULL)
    )
) ENGINE = InnoDB;
