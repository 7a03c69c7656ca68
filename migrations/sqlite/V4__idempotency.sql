-- One row per idempotency record; docs: ARCHITECTURE.md, "Records".
-- clean_at is when the cleaner has something to do; a running or unknown record has none.
-- Times are microseconds since 1970-01-01 UTC.
CREATE TABLE IF NOT EXISTS rowlock_idempotency (
    scope           BLOB    NOT NULL,
    idempotency_key BLOB    NOT NULL,
    state           TEXT    NOT NULL,
    attempt         INTEGER NOT NULL,
    tries           INTEGER NOT NULL,
    max_tries       INTEGER NOT NULL,
    owner           BLOB    NOT NULL,
    holder          TEXT    NOT NULL,
    fingerprint     BLOB    NOT NULL,
    bound           INTEGER NOT NULL,
    doubt           TEXT,
    content_type    TEXT,
    outcome         BLOB,
    began_at        INTEGER NOT NULL,
    attempted_at    INTEGER NOT NULL,
    lease_until     INTEGER NOT NULL,
    done_at         INTEGER,
    retain_until    INTEGER,
    forget_at       INTEGER,
    clean_at        INTEGER,
    PRIMARY KEY (scope, idempotency_key),
    CONSTRAINT rowlock_idempotency_scope CHECK (length(scope) BETWEEN 1 AND 255),
    CONSTRAINT rowlock_idempotency_key CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    CONSTRAINT rowlock_idempotency_fingerprint CHECK (length(fingerprint) = 32 AND length(owner) = 16),
    CONSTRAINT rowlock_idempotency_attempt CHECK (
        attempt BETWEEN 0 AND 4611686018427387903 AND tries >= 0 AND max_tries >= 1),
    CONSTRAINT rowlock_idempotency_state CHECK (
        (state = 'running' AND outcome IS NULL AND forget_at IS NULL AND clean_at IS NULL)
        OR (state = 'unknown' AND doubt IS NOT NULL AND outcome IS NULL AND forget_at IS NULL AND clean_at IS NULL)
        OR (state = 'free' AND outcome IS NULL AND forget_at IS NOT NULL AND clean_at IS NOT NULL)
        OR (state = 'done' AND outcome IS NOT NULL AND content_type IS NOT NULL AND done_at IS NOT NULL
            AND retain_until IS NOT NULL AND forget_at IS NOT NULL AND clean_at IS NOT NULL)
        OR (state = 'expired' AND outcome IS NULL AND forget_at IS NOT NULL AND clean_at IS NOT NULL)
    )
) STRICT;
CREATE INDEX IF NOT EXISTS rowlock_idempotency_clean ON rowlock_idempotency (clean_at) WHERE clean_at IS NOT NULL;
