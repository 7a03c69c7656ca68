-- One row per idempotency record; docs/internals/records.md.
-- clean_at is when the cleaner has something to do; NULL: never, because a person decides about the record first. The constraint is short on purpose: it is checked with every
-- write.
-- Times are microseconds since 1970-01-01 UTC.
CREATE TABLE IF NOT EXISTS rowlock_idempotency (
    scope            BLOB    NOT NULL,
    idempotency_key  BLOB    NOT NULL,
    state            TEXT    NOT NULL,
    attempt          INTEGER NOT NULL,
    abandoned         INTEGER NOT NULL,
    max_attempts     INTEGER NOT NULL,
    attempt_id       BLOB    NOT NULL,
    holder           TEXT    NOT NULL,
    fingerprint      BLOB    NOT NULL,
    bound            INTEGER NOT NULL,
    open_step        TEXT,
    open_step_number INTEGER,
    content_type     TEXT,
    outcome          BLOB,
    began_at         INTEGER NOT NULL,
    attempted_at     INTEGER NOT NULL,
    lease_until      INTEGER NOT NULL,
    done_at          INTEGER,
    retain_until     INTEGER,
    forget_at        INTEGER,
    clean_at         INTEGER,
    PRIMARY KEY (scope, idempotency_key),
    CONSTRAINT rowlock_idempotency_state CHECK (
        state IN ('running', 'free', 'done', 'unknown', 'expired')
        AND (state = 'done') = (outcome IS NOT NULL) AND (clean_at IS NULL) = (forget_at IS NULL)
    )
) STRICT;
CREATE INDEX IF NOT EXISTS rowlock_idempotency_clean ON rowlock_idempotency (clean_at);

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

-- One row per form token that has not been used; docs/internals/records.md, "Form tokens".
-- token is the SHA-256 of what the form has in it.
CREATE TABLE IF NOT EXISTS rowlock_form_token (
    scope      BLOB NOT NULL,
    token      BLOB NOT NULL,
    issued_at  INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (scope, token)
) STRICT;
CREATE INDEX IF NOT EXISTS rowlock_form_token_expires ON rowlock_form_token (expires_at);
