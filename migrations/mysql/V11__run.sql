-- The last run of the work under a lock; docs/internals/locks.md, "Runs". One row per lock name.
CREATE TABLE IF NOT EXISTS rowlock_run (
    name      varbinary(255) NOT NULL PRIMARY KEY,
    grant_id  binary(16)     NOT NULL,
    fence     bigint         NOT NULL,
    holder    varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    began_at  datetime(6)    NOT NULL,
    ended_at  datetime(6),
    succeeded boolean,
    message   text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    CONSTRAINT rowlock_run_ended CHECK ((ended_at IS NULL) = (succeeded IS NULL) AND (ended_at IS NULL) = (message IS NULL))
) ENGINE = InnoDB;
