-- One row per idempotency record; docs/internals/records.md.
-- clean_at is when the cleaner has something to do; NULL: never, because a person decides about the record first. The constraint is short on purpose: it is checked with every
-- write.
CREATE TABLE IF NOT EXISTS rowlock_idempotency (
    scope            bytea       NOT NULL,
    idempotency_key  bytea       NOT NULL,
    state            text        NOT NULL,
    attempt          bigint      NOT NULL,
    abandoned         integer     NOT NULL,
    max_attempts     integer     NOT NULL,
    attempt_id       uuid        NOT NULL,
    holder           text        NOT NULL,
    fingerprint      bytea       NOT NULL,
    bound            boolean     NOT NULL,
    open_step        text,
    open_step_number integer,
    content_type     text,
    outcome          bytea,
    began_at         timestamptz NOT NULL,
    attempted_at     timestamptz NOT NULL,
    lease_until      timestamptz NOT NULL,
    done_at          timestamptz,
    retain_until     timestamptz,
    forget_at        timestamptz,
    clean_at         timestamptz,
    PRIMARY KEY (scope, idempotency_key),
    CONSTRAINT rowlock_idempotency_state CHECK (
        state IN ('running', 'free', 'done', 'unknown', 'expired')
        AND (state = 'done') = (outcome IS NOT NULL) AND (clean_at IS NULL) = (forget_at IS NULL)
    )
) WITH (fillfactor = 80);
CREATE INDEX IF NOT EXISTS rowlock_idempotency_clean ON rowlock_idempotency (clean_at);

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

-- One row per form token that has not been used; docs/internals/records.md, "Form tokens".
-- token is the SHA-256 of what the form has in it.
CREATE TABLE IF NOT EXISTS rowlock_form_token (
    scope      bytea NOT NULL,
    token      bytea NOT NULL,
    issued_at  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (scope, token)
);
CREATE INDEX IF NOT EXISTS rowlock_form_token_expires ON rowlock_form_token (expires_at);
