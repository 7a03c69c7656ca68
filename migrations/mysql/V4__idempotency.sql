-- One row per idempotency record; docs: ARCHITECTURE.md, "Records".
-- clean_at is when the cleaner has something to do; a running or unknown record has none.
-- Times are UTC. DDL commits by itself here: one rerunnable statement a file.
CREATE TABLE IF NOT EXISTS rowlock_idempotency (
    scope           varbinary(255) NOT NULL,
    idempotency_key varbinary(255) NOT NULL,
    state           varchar(16)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt         bigint         NOT NULL,
    tries           integer        NOT NULL,
    max_tries       integer        NOT NULL,
    owner           binary(16)     NOT NULL,
    holder          varchar(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    fingerprint     binary(32)     NOT NULL,
    bound           boolean        NOT NULL,
    doubt           varchar(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    content_type    varchar(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    outcome         longblob,
    began_at        datetime(6)    NOT NULL,
    attempted_at    datetime(6)    NOT NULL,
    lease_until     datetime(6)    NOT NULL,
    done_at         datetime(6),
    retain_until    datetime(6),
    forget_at       datetime(6),
    clean_at        datetime(6),
    PRIMARY KEY (scope, idempotency_key),
    KEY rowlock_idempotency_clean (clean_at),
    CONSTRAINT rowlock_idempotency_scope CHECK (octet_length(scope) BETWEEN 1 AND 255),
    CONSTRAINT rowlock_idempotency_key CHECK (octet_length(idempotency_key) BETWEEN 1 AND 255),
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
) ENGINE = InnoDB;
