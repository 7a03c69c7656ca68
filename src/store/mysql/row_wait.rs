//! How long a verb of the queue waits for the row of a name.

/// The SELECT that locks the row waits for at most 20 ms: MySQL reads the hint, in milliseconds, and MariaDB the
/// prefix, in seconds. (`innodb_lock_wait_timeout` would be a second at least on MySQL.)
#[cfg(not(test))]
macro_rules! wait {
    () => {
        "/*M! SET STATEMENT max_statement_time = 0.020 FOR */ SELECT /*+ MAX_EXECUTION_TIME(20) */"
    };
}
/// For tests of the verbs: the limit is on the whole statement, which a busy machine may delay by more than 20 ms.
#[cfg(test)]
macro_rules! wait {
    () => {
        "/*M! SET STATEMENT max_statement_time = 0.150 FOR */ SELECT /*+ MAX_EXECUTION_TIME(150) */"
    };
}
pub(super) use wait;
