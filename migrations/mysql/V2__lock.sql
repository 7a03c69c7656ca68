-- One row per lock name. The row is the lock; docs/internals/locks.md, "One row".
-- Times are UTC. DDL commits by itself here: each statement can run again.
-- The queue of the name: waiters is how many rows rowlock_waiter has, next_position the next one to give; all
-- waiters are after passed.
-- Before reclaim_at no permit of the name ends of itself; docs/internals/permits.md.
-- Until paused_until nobody is granted the name; docs/internals/locks.md, "A pause". 9999-12-31: until it is resumed.
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
    reclaim_at    datetime(6),
    paused_until  datetime(6),
    paused_by     varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    paused_why    varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    KEY rowlock_lock_session (session_id),
    CONSTRAINT rowlock_lock_name CHECK (octet_length(name) BETWEEN 1 AND 288),
    CONSTRAINT rowlock_lock_fence CHECK (fence BETWEEN 0 AND 4611686018427387903),
    CONSTRAINT rowlock_lock_held CHECK (
        (grant_id IS NULL AND holder IS NULL AND acquired_at IS NULL AND expires_at IS NULL
         AND session_id IS NULL)
        OR (grant_id IS NOT NULL AND holder IS NOT NULL
            AND acquired_at IS NOT NULL AND expires_at IS NOT NULL)
    ),
    CONSTRAINT rowlock_lock_paused CHECK (
        (paused_until IS NULL) = (paused_by IS NULL) AND (paused_until IS NULL) = (paused_why IS NULL)
    )
) ENGINE = InnoDB;

-- One row per session of a client; docs/internals/sessions.md.
-- expires_at NULL: the session has ended for good, and its locks are being freed.
-- forced: how many of its locks were freed by force; the client looks at its locks when this number has changed.
CREATE TABLE IF NOT EXISTS rowlock_session (
    id         binary(16)  NOT NULL PRIMARY KEY,
    holder     varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    opened_at  datetime(6) NOT NULL,
    expires_at datetime(6),
    forced     bigint      NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- One row per waiter for a lock, in the order of the positions; docs/internals/queue.md.
-- All waiters of a name have positions after rowlock_lock.passed and before next_position.
CREATE TABLE IF NOT EXISTS rowlock_waiter (
    name       varbinary(255) NOT NULL,
    position   bigint         NOT NULL,
    grant_id   binary(16)     NOT NULL,
    session_id binary(16)     NOT NULL,
    holder     varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    joined_at  datetime(6)    NOT NULL,
    weight     bigint         NOT NULL DEFAULT 0,
    PRIMARY KEY (name, position),
    UNIQUE KEY rowlock_waiter_grant (grant_id)
) ENGINE = InnoDB;

-- What the owner of a waiter holds while it waits: one row per grant; docs/internals/queue.md, "Deadlocks". A row
-- whose waiter is gone means nothing.
CREATE TABLE IF NOT EXISTS rowlock_waiting_owner (
    grant_id   binary(16)     NOT NULL,
    held_grant binary(16)     NOT NULL,
    name       varbinary(255) NOT NULL,
    position   bigint         NOT NULL,
    owner      varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (grant_id, held_grant),
    KEY rowlock_waiting_owner_held (held_grant)
) ENGINE = InnoDB;

-- The last 20 runs of the work under a lock; docs/internals/locks.md, "Runs".
CREATE TABLE IF NOT EXISTS rowlock_run (
    name      varbinary(255) NOT NULL,
    grant_id  binary(16)     NOT NULL,
    fence     bigint         NOT NULL,
    holder    varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    began_at  datetime(6)    NOT NULL,
    ended_at  datetime(6),
    succeeded boolean,
    message   text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    PRIMARY KEY (name, fence),
    CONSTRAINT rowlock_run_ended CHECK ((ended_at IS NULL) = (succeeded IS NULL) AND (ended_at IS NULL) = (message IS NULL))
) ENGINE = InnoDB;
