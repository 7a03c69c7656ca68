//! Lists for operators: the statements.

use async_trait::async_trait;
use sqlx::MySqlConnection;

use super::lock_row::{row_columns, row_ends};
use super::statement::{fill, hex, read_as};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::list::{KeyRange, ListStore};
use crate::store::verbs::queue::WaiterRow;
use crate::store::verbs::row::LockRow;

const ROWS: &str = concat!(
    "
SELECT",
    row_columns!("SYSDATE(6)"),
    "
FROM (SELECT name FROM rowlock_lock FORCE INDEX (PRIMARY) WHERE name >= ? AND name < ? ORDER BY name LIMIT 1000) k
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = k.name
LEFT JOIN rowlock_session s ON s.id = l.session_id
ORDER BY k.name"
);

/// The names first: MySQL and MariaDB read the keys that differ, and skip the waiters between them.
const AWAITED: &str = concat!(
    "
SELECT",
    row_columns!("SYSDATE(6)"),
    "
FROM (SELECT DISTINCT name FROM rowlock_waiter FORCE INDEX (PRIMARY) WHERE name >= ? AND name < ?
      ORDER BY name LIMIT 1000) a
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = a.name
LEFT JOIN rowlock_session s ON s.id = l.session_id
ORDER BY l.name"
);

const WAITERS: &str = "
SELECT w.name, w.position, w.holder, w.session_id,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', w.joined_at),
       TIMESTAMPDIFF(MICROSECOND, w.joined_at, SYSDATE(6))
FROM rowlock_waiter w FORCE INDEX (PRIMARY) STRAIGHT_JOIN rowlock_session s ON s.id = w.session_id
WHERE w.name = ? AND w.position > ? AND s.expires_at > SYSDATE(6)
ORDER BY w.position LIMIT 1000";

#[async_trait]
impl ListStore for MySqlConnection {
    async fn list_rows(&mut self, range: &KeyRange) -> Result<Vec<LockRow>, Fault> {
        let keys = [hex(&range.from), hex(&range.until)];
        Ok(read_as(self, &fill(ROWS, &keys)).await?)
    }

    async fn list_awaited(&mut self, range: &KeyRange) -> Result<Vec<LockRow>, Fault> {
        let keys = [hex(&range.from), hex(&range.until)];
        Ok(read_as(self, &fill(AWAITED, &keys)).await?)
    }

    async fn list_waiters(&mut self, name: &Name, after: i64) -> Result<Vec<WaiterRow>, Fault> {
        let keys = [hex(name.as_bytes()), after.to_string()];
        Ok(read_as(self, &fill(WAITERS, &keys)).await?)
    }
}
