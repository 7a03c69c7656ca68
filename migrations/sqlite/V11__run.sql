-- The last run of the work under a lock; docs/internals/locks.md, "Runs". One row per lock name.
CREATE TABLE IF NOT EXISTS rowlock_run (
    name      BLOB    NOT NULL PRIMARY KEY,
    grant_id  BLOB    NOT NULL,
    fence     INTEGER NOT NULL,
    holder    TEXT    NOT NULL,
    began_at  INTEGER NOT NULL,
    ended_at  INTEGER,
    succeeded INTEGER,
    message   TEXT,
    CONSTRAINT rowlock_run_ended CHECK ((ended_at IS NULL) = (succeeded IS NULL) AND (ended_at IS NULL) = (message IS NULL))
) STRICT, WITHOUT ROWID;
