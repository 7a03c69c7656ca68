-- What the owner of a waiter holds while it waits: one row per grant; docs/internals/queue.md, "Deadlocks". A row whose waiter is gone means nothing.
CREATE TABLE IF NOT EXISTS rowlock_waiting_owner (
    grant_id   binary(16)     NOT NULL,
    held_grant binary(16)     NOT NULL,
    name       varbinary(255) NOT NULL,
    position   bigint         NOT NULL,
    owner      varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (grant_id, held_grant),
    KEY rowlock_waiting_owner_held (held_grant)
) ENGINE = InnoDB;
