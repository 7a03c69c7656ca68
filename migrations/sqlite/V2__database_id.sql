INSERT INTO rowlock_database (one, id) VALUES (1, randomblob(16)) ON CONFLICT (one) DO NOTHING;
