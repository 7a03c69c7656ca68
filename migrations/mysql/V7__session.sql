-- One row per session of a client; docs/internals/sessions.md.
-- expires_at NULL: the session has ended for good, and its locks are being freed.
-- forced: how many of its locks were freed by force; the client looks at its locks when this number has changed.
CREATE TABLE IF NOT EXISTS rowlock_session (
    id         binary(16)  NOT NULL PRIMARY KEY,
    holder     varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    opened_at  datetime(6) NOT NULL,
    expires_at datetime(6),
    forced     bigint      NOT NULL DEFAULT 0
) ENGINE = InnoDB;
