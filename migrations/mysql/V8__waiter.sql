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
    PRIMARY KEY (name, position)
) ENGINE = InnoDB;
