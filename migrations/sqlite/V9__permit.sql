-- Read/write locks and semaphores; docs/internals/permits.md. They use the columns of rowlock_lock and rowlock_waiter. PostgreSQL has functions
-- for them here. This statement changes nothing: the versions are the same for every database.
UPDATE rowlock_lock SET used = 0 WHERE 1 = 0;
