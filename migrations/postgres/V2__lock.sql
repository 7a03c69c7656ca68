-- One row per lock name. The row is the lock; docs/internals/locks.md, "One row".
-- Before reclaim_at no permit of the name ends of itself; docs/internals/permits.md.
-- Until paused_until nobody is granted the name; docs/internals/locks.md, "A pause". 9999-12-31: until it is resumed.
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
    waiters       bigint       NOT NULL DEFAULT 0,
    next_position bigint       NOT NULL DEFAULT 1,
    passed        bigint       NOT NULL DEFAULT 0,
    capacity      bigint       NOT NULL DEFAULT 0,
    used          bigint       NOT NULL DEFAULT 0,
    weight        bigint       NOT NULL DEFAULT 0,
    reclaim_at    timestamptz,
    paused_until  timestamptz,
    paused_by     text,
    paused_why    text,
    CONSTRAINT rowlock_lock_name CHECK (octet_length(name) BETWEEN 1 AND 288),
    CONSTRAINT rowlock_lock_fence CHECK (fence BETWEEN 0 AND 4611686018427387903),
    CONSTRAINT rowlock_lock_held CHECK (
        (grant_id IS NULL AND holder IS NULL AND acquired_at IS NULL AND expires_at IS NULL
         AND session_id IS NULL)
        OR (grant_id IS NOT NULL AND holder IS NOT NULL
            AND acquired_at IS NOT NULL AND isfinite(acquired_at)
            AND expires_at IS NOT NULL AND isfinite(expires_at))
    ),
    CONSTRAINT rowlock_lock_paused CHECK (
        (paused_until IS NULL) = (paused_by IS NULL) AND (paused_until IS NULL) = (paused_why IS NULL)
        AND (paused_until IS NULL OR isfinite(paused_until))
    )
) WITH (fillfactor = 50);
-- Only the locks of sessions are in it: a grant without a session does not write it.
CREATE INDEX IF NOT EXISTS rowlock_lock_session ON rowlock_lock (session_id, name) WHERE session_id IS NOT NULL;

-- One row per session of a client; docs/internals/sessions.md.
-- expires_at NULL: the session has ended for good, and its locks are being freed.
-- forced: how many of its locks were freed by force; the client looks at its locks when this number has changed.
CREATE TABLE IF NOT EXISTS rowlock_session (
    id         uuid        NOT NULL PRIMARY KEY,
    holder     text        NOT NULL,
    opened_at  timestamptz NOT NULL,
    expires_at timestamptz,
    forced     bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- One row per waiter for a lock, in the order of the positions; docs/internals/queue.md.
-- All waiters of a name have positions after rowlock_lock.passed and before next_position.
CREATE TABLE IF NOT EXISTS rowlock_waiter (
    name       bytea       NOT NULL,
    position   bigint      NOT NULL,
    grant_id   uuid        NOT NULL,
    session_id uuid        NOT NULL,
    holder     text        NOT NULL,
    joined_at  timestamptz NOT NULL,
    weight     bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (name, position)
);
CREATE UNIQUE INDEX IF NOT EXISTS rowlock_waiter_grant ON rowlock_waiter (grant_id);

-- What the owner of a waiter holds while it waits: one row per grant; docs/internals/queue.md, "Deadlocks". A row
-- whose waiter is gone means nothing.
CREATE TABLE IF NOT EXISTS rowlock_waiting_owner (
    grant_id   uuid   NOT NULL,
    held_grant uuid   NOT NULL,
    name       bytea  NOT NULL,
    position   bigint NOT NULL,
    owner      text   NOT NULL,
    PRIMARY KEY (grant_id, held_grant)
);
CREATE INDEX IF NOT EXISTS rowlock_waiting_owner_held ON rowlock_waiting_owner (held_grant);

-- The last 20 runs of the work under a lock; docs/internals/locks.md, "Runs".
CREATE TABLE IF NOT EXISTS rowlock_run (
    name      bytea       NOT NULL,
    grant_id  uuid        NOT NULL,
    fence     bigint      NOT NULL,
    holder    text        NOT NULL,
    began_at  timestamptz NOT NULL,
    ended_at  timestamptz,
    succeeded boolean,
    message   text,
    PRIMARY KEY (name, fence),
    CONSTRAINT rowlock_run_ended CHECK ((ended_at IS NULL) = (succeeded IS NULL) AND (ended_at IS NULL) = (message IS NULL))
);

-- The functions that clients use, by their names, and when one noted last that it does; src/store/postgres/functions.
CREATE TABLE IF NOT EXISTS rowlock_function (
    name    text        NOT NULL PRIMARY KEY,
    used_at timestamptz NOT NULL
);
