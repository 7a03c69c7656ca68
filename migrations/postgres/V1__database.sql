-- One row: an id that tells this database from every other one; docs/internals/locks.md, "The database's id".
-- Until quarantine_until, by the database's clock, nothing is granted; docs/internals/quarantine.md. It is the
-- first migration: a
-- database that is made anew can be in quarantine before it has a table of locks.
CREATE TABLE IF NOT EXISTS rowlock_database (
    one smallint NOT NULL PRIMARY KEY DEFAULT 1,
    id  uuid     NOT NULL,
    quarantine_until timestamptz,
    CONSTRAINT rowlock_database_one CHECK (one = 1)
);
INSERT INTO rowlock_database (one, id) VALUES (1, gen_random_uuid()) ON CONFLICT (one) DO NOTHING;
