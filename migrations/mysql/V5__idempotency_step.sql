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
