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
