INSERT IGNORE INTO rowlock_database (one, id) VALUES (1, UNHEX(REPLACE(UUID(), '-', '')));
