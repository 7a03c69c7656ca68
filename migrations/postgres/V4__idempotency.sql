-- One row per idempotency record; docs: ARCHITECTURE.md, "Records".
-- clean_at is when the cleaner has something to do; a running or unknown record has none.
CREATE TABLE IF NOT EXISTS rowlock_idempotency (
    scope           bytea       NOT NULL,
    idempotency_key bytea       NOT NULL,
    state           text        NOT NULL,
    attempt         bigint      NOT NULL,
    tries           integer     NOT NULL,
    max_tries       integer     NOT NULL,
    owner           uuid        NOT NULL,
    holder          text        NOT NULL,
    fingerprint     bytea       NOT NULL,
    bound           boolean     NOT NULL,
    doubt           text,
    content_type    text,
    outcome         bytea,
    began_at        timestamptz NOT NULL,
    attempted_at    timestamptz NOT NULL,
    lease_until     timestamptz NOT NULL,
    done_at         timestamptz,
    retain_until    timestamptz,
    forget_at       timestamptz,
    clean_at        timestamptz,
    PRIMARY KEY (scope, idempotency_key),
    CONSTRAINT rowlock_idempotency_scope CHECK (octet_length(scope) BETWEEN 1 AND 255),
    CONSTRAINT rowlock_idempotency_key CHECK (octet_length(idempotency_key) BETWEEN 1 AND 255),
    CONSTRAINT rowlock_idempotency_fingerprint CHECK (octet_length(fingerprint) = 32),
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
) WITH (fillfactor = 80);
CREATE INDEX IF NOT EXISTS rowlock_idempotency_clean ON rowlock_idempotency (clean_at) WHERE clean_at IS NOT NULL;
