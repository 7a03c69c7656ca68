-- What the owner of a waiter holds while it waits: one row per grant; docs/internals/queue.md, "Deadlocks". A row whose waiter is gone means nothing.
CREATE TABLE IF NOT EXISTS rowlock_waiting_owner (
    grant_id   uuid   NOT NULL,
    held_grant uuid   NOT NULL,
    name       bytea  NOT NULL,
    position   bigint NOT NULL,
    owner      text   NOT NULL,
    PRIMARY KEY (grant_id, held_grant)
);
CREATE INDEX IF NOT EXISTS rowlock_waiting_owner_held ON rowlock_waiting_owner (held_grant);
