-- One row per finished step of an idempotency record; docs/internals/records.md.
CREATE TABLE IF NOT EXISTS rowlock_idempotency_step (
    scope           BLOB NOT NULL,
    idempotency_key BLOB NOT NULL,
    step            TEXT NOT NULL,
    attempt         INTEGER NOT NULL,
    content_type    TEXT NOT NULL,
    outcome         BLOB NOT NULL,
    done_at         INTEGER NOT NULL,
    PRIMARY KEY (scope, idempotency_key, step)
) STRICT;
