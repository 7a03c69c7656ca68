-- One row per session of a client; docs/internals/sessions.md.
-- expires_at NULL: the session has ended for good, and its locks are being freed.
-- forced: how many of its locks were freed by force; the client looks at its locks when this number has changed.
CREATE TABLE IF NOT EXISTS rowlock_session (
    id         BLOB    NOT NULL PRIMARY KEY,
    holder     TEXT    NOT NULL,
    opened_at  INTEGER NOT NULL,
    expires_at INTEGER,
    forced     INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
