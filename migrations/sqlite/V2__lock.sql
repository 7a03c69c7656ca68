-- One row per lock name. The row is the lock; docs/internals/locks.md, "One row".
-- Times are microseconds since 1970-01-01 UTC.
-- Before reclaim_at no permit of the name ends of itself; docs/internals/permits.md.
-- Until paused_until nobody is granted the name; docs/internals/locks.md, "A pause". 9999-12-31: until it is resumed.
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
    reclaim_at    INTEGER,
    paused_until  INTEGER,
    paused_by     TEXT,
    paused_why    TEXT,
    CONSTRAINT rowlock_lock_name CHECK (length(name) BETWEEN 1 AND 288),
    CONSTRAINT rowlock_lock_fence CHECK (fence BETWEEN 0 AND 4611686018427387903),
    CONSTRAINT rowlock_lock_held CHECK (
        (grant_id IS NULL AND holder IS NULL AND acquired_at IS NULL AND expires_at IS NULL
         AND session_id IS NULL)
        OR (grant_id IS NOT NULL AND length(grant_id) = 16 AND holder IS NOT NULL
            AND acquired_at IS NOT NULL AND expires_at IS NOT NULL)
    ),
    CONSTRAINT rowlock_lock_paused CHECK (
        (paused_until IS NULL) = (paused_by IS NULL) AND (paused_until IS NULL) = (paused_why IS NULL)
    )
) STRICT, WITHOUT ROWID;
-- Only the locks of sessions are in it: a grant without a session does not write it.
CREATE INDEX IF NOT EXISTS rowlock_lock_session ON rowlock_lock (session_id) WHERE session_id IS NOT NULL;

-- One row per session of a client; docs/internals/sessions.md.
-- expires_at NULL: the session has ended for good, and its locks are being freed.
-- forced: how many of its locks were freed by force; the client looks at its locks when this number has changed.
CREATE TABLE IF NOT EXISTS rowlock_session (
    id         BLOB    NOT NULL PRIMARY KEY,
    holder     TEXT    NOT NULL,
    opened_at  INTEGER NOT NULL,
    expires_at INTEGER,
    forced     INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- One row per waiter for a lock, in the order of the positions; docs/internals/queue.md.
-- All waiters of a name have positions after rowlock_lock.passed and before next_position.
CREATE TABLE IF NOT EXISTS rowlock_waiter (
    name       BLOB    NOT NULL,
    position   INTEGER NOT NULL,
    grant_id   BLOB    NOT NULL,
    session_id BLOB    NOT NULL,
    holder     TEXT    NOT NULL,
    joined_at  INTEGER NOT NULL,
    weight     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (name, position)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS rowlock_waiter_grant ON rowlock_waiter (grant_id);

-- What the owner of a waiter holds while it waits: one row per grant; docs/internals/queue.md, "Deadlocks". A row
-- whose waiter is gone means nothing.
CREATE TABLE IF NOT EXISTS rowlock_waiting_owner (
    grant_id   BLOB    NOT NULL,
    held_grant BLOB    NOT NULL,
    name       BLOB    NOT NULL,
    position   INTEGER NOT NULL,
    owner      TEXT    NOT NULL,
    PRIMARY KEY (grant_id, held_grant)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rowlock_waiting_owner_held ON rowlock_waiting_owner (held_grant);

-- The last 20 runs of the work under a lock; docs/internals/locks.md, "Runs".
CREATE TABLE IF NOT EXISTS rowlock_run (
    name      BLOB    NOT NULL,
    grant_id  BLOB    NOT NULL,
    fence     INTEGER NOT NULL,
    holder    TEXT    NOT NULL,
    began_at  INTEGER NOT NULL,
    ended_at  INTEGER,
    succeeded INTEGER,
    message   TEXT,
    PRIMARY KEY (name, fence),
    CONSTRAINT rowlock_run_ended CHECK ((ended_at IS NULL) = (succeeded IS NULL) AND (ended_at IS NULL) = (message IS NULL))
) STRICT, WITHOUT ROWID;
