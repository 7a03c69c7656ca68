-- One row: an id that tells this database from every other one; docs: ARCHITECTURE.md, "The database's id".
CREATE TABLE IF NOT EXISTS rowlock_database (
    one smallint   NOT NULL PRIMARY KEY DEFAULT 1,
    id  binary(16) NOT NULL,
    CONSTRAINT rowlock_database_one CHECK (one = 1)
) ENGINE = InnoDB;
