-- What the owner of a waiter holds while it waits: one row per grant; docs/internals/queue.md, "Deadlocks". A row whose waiter is gone means nothing.
CREATE TABLE IF NOT EXISTS rowlock_waiting_owner (
    grant_id   BLOB    NOT NULL,
    held_grant BLOB    NOT NULL,
    name       BLOB    NOT NULL,
    position   INTEGER NOT NULL,
    owner      TEXT    NOT NULL,
    PRIMARY KEY (grant_id, held_grant)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rowlock_waiting_owner_held ON rowlock_waiting_owner (held_grant);
