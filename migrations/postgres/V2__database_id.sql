INSERT INTO rowlock_database (one, id) VALUES (1, gen_random_uuid()) ON CONFLICT (one) DO NOTHING;
