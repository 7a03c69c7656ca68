-- One row per session of a client; docs/internals/sessions.md.
-- expires_at NULL: the session has ended for good, and its locks are being freed.
-- forced: how many of its locks were freed by force; the client looks at its locks when this number has changed.
CREATE TABLE IF NOT EXISTS rowlock_session (
    id         uuid        NOT NULL PRIMARY KEY,
    holder     text        NOT NULL,
    opened_at  timestamptz NOT NULL,
    expires_at timestamptz,
    forced     bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
