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
