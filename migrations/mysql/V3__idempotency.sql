-- One row per idempotency record; docs/internals/records.md.
-- clean_at is when the cleaner has something to do; NULL: never, because a person decides about the record first. The constraint is short on purpose: it is checked with every
-- write.
-- Times are UTC. DDL commits by itself here: each statement can run again.
CREATE TABLE IF NOT EXISTS rowlock_idempotency (
    scope            varbinary(255) NOT NULL,
    idempotency_key  varbinary(255) NOT NULL,
    state            varchar(16)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempt          bigint         NOT NULL,
    abandoned         integer        NOT NULL,
    max_attempts     integer        NOT NULL,
    attempt_id       binary(16)     NOT NULL,
    holder           varchar(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    fingerprint      binary(32)     NOT NULL,
    bound            boolean        NOT NULL,
    open_step        varbinary(255),
    open_step_number int,
    content_type     varchar(255)   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    outcome          longblob,
    began_at         datetime(6)    NOT NULL,
    attempted_at     datetime(6)    NOT NULL,
    lease_until      datetime(6)    NOT NULL,
    done_at          datetime(6),
    retain_until     datetime(6),
    forget_at        datetime(6),
    clean_at         datetime(6),
    PRIMARY KEY (scope, idempotency_key),
    KEY rowlock_idempotency_clean (clean_at),
    CONSTRAINT rowlock_idempotency_state CHECK (
        state IN ('running', 'free', 'done', 'unknown', 'expired')
        AND (state = 'done') = (outcome IS NOT NULL) AND (clean_at IS NULL) = (forget_at IS NULL)
    )
) ENGINE = InnoDB;

-- One row per finished step of an idempotency record; docs/internals/records.md.
CREATE TABLE IF NOT EXISTS rowlock_idempotency_step (
    scope           varbinary(255) NOT NULL,
    idempotency_key varbinary(255) NOT NULL,
    step            varbinary(255) NOT NULL,
    attempt         bigint NOT NULL,
    content_type    varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    outcome         longblob NOT NULL,
    done_at         datetime(6) NOT NULL,
    PRIMARY KEY (scope, idempotency_key, step)
) ENGINE = InnoDB;

-- One row per form token that has not been used; docs/internals/records.md, "Form tokens".
-- token is the SHA-256 of what the form has in it.
CREATE TABLE IF NOT EXISTS rowlock_form_token (
    scope      varbinary(255) NOT NULL,
    token      binary(32) NOT NULL,
    issued_at  datetime(6) NOT NULL,
    expires_at datetime(6) NOT NULL,
    PRIMARY KEY (scope, token),
    KEY rowlock_form_token_expires (expires_at)
) ENGINE = InnoDB;
