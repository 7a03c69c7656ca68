-- The last run of the work under a lock; docs/internals/locks.md, "Runs". One row per lock name.
CREATE TABLE IF NOT EXISTS rowlock_run (
    name      bytea       NOT NULL PRIMARY KEY,
    grant_id  uuid        NOT NULL,
    fence     bigint      NOT NULL,
    holder    text        NOT NULL,
    began_at  timestamptz NOT NULL,
    ended_at  timestamptz,
    succeeded boolean,
    message   text,
    CONSTRAINT rowlock_run_ended CHECK ((ended_at IS NULL) = (succeeded IS NULL) AND (ended_at IS NULL) = (message IS NULL))
);
