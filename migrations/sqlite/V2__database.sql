-- One row: an id that tells this database from every other one; docs: ARCHITECTURE.md, "The database's id".
CREATE TABLE IF NOT EXISTS rowlock_database (
    one INTEGER NOT NULL PRIMARY KEY DEFAULT 1,
    id  BLOB    NOT NULL,
    CONSTRAINT rowlock_database_one CHECK (one = 1 AND length(id) = 16)
) STRICT;
