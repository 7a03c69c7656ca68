-- One row per waiter for a lock, in the order of the positions; docs: ARCHITECTURE.md, "The queue".
-- All waiters of a name have positions after rowlock_lock.passed and before next_position.
CREATE TABLE IF NOT EXISTS rowlock_waiter (
    name       bytea       NOT NULL,
    position   bigint      NOT NULL,
    grant_id   uuid        NOT NULL,
    session_id uuid        NOT NULL,
    holder     text        NOT NULL,
    joined_at  timestamptz NOT NULL,
    PRIMARY KEY (name, position)
);
