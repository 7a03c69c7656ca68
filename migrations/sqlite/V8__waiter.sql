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
