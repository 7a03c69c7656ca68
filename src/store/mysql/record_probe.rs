//! Locking records without a wait.
//!
//! The key of a record that an open transaction is making cannot be seen, and inserting it again would wait for that
//! transaction. MariaDB has a time-out of zero for that. On MySQL a lane first asks for the lock of such a key with
//! NOWAIT. (Another transaction may insert the key just afterwards; the lane's time-out bounds the wait for that
//! transaction.)

use super::statement::hex;
use crate::model::RecordKey;

/// Locks the records of these keys. Finds none of a transaction that is making one, and does not wait for it.
pub(super) fn probe<'a>(keys: impl IntoIterator<Item = &'a RecordKey>) -> String {
    let keys = keys.into_iter().map(literals);
    let keys = keys.map(|[scope, key]| format!("({scope}, {key})"));
    let keys: Vec<String> = keys.collect();
    format!(
        "SELECT attempt FROM rowlock_idempotency FORCE INDEX (PRIMARY)
         WHERE (scope, idempotency_key) IN ({}) FOR UPDATE NOWAIT",
        keys.join(", ")
    )
}

/// [`probe`] before a statement that would wait on MySQL. MariaDB needs none: [`NO_WAIT`] ends the wait.
pub(super) fn probe_before<'a>(keys: impl IntoIterator<Item = &'a RecordKey>) -> String {
    let mut keys = keys.into_iter().peekable();
    if keys.peek().is_none() {
        return String::from("DO 0");
    }
    format!("/*!80000 {} */ /*M! DO 0 */", probe(keys))
}

/// MariaDB only: the statement fails at once instead of waiting for a row.
pub(super) const NO_WAIT: &str = "/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ ";

pub(super) fn literals(key: &RecordKey) -> [String; 2] {
    [hex(key.scope()), hex(key.key())]
}
