-- One row per finished step of an idempotency record; docs/internals/records.md.
CREATE TABLE IF NOT EXISTS rowlock_idempotency_step (
    scope           bytea NOT NULL,
    idempotency_key bytea NOT NULL,
    step            text NOT NULL,
    attempt         bigint NOT NULL,
    content_type    text NOT NULL,
    outcome         bytea NOT NULL,
    done_at         timestamptz NOT NULL,
    PRIMARY KEY (scope, idempotency_key, step)
);
