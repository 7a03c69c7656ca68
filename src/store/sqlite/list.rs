//! Lists for operators: the statements.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::lock_row::{row_columns, row_ends};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::list::{KeyRange, ListStore};
use crate::store::verbs::queue::WaiterRow;
use crate::store::verbs::row::LockRow;

const ROWS: &str = concat!(
    "
SELECT",
    row_columns!(),
    "
FROM (SELECT name FROM rowlock_lock WHERE name >= ?1 AND name < ?2 ORDER BY name LIMIT 1000) k
CROSS JOIN rowlock_lock l ON l.name = k.name
LEFT JOIN rowlock_session s ON s.id = l.session_id
ORDER BY l.name"
);

/// From each name that has a waiter to the next one, by the primary key.
const AWAITED: &str = concat!(
    "
WITH RECURSIVE awaited (name, n) AS (
    SELECT (SELECT min(w.name) FROM rowlock_waiter w WHERE w.name >= ?1 AND w.name < ?2), 1
    UNION ALL
    SELECT (SELECT min(w.name) FROM rowlock_waiter w WHERE w.name > a.name AND w.name < ?2), a.n + 1
    FROM awaited a WHERE a.name IS NOT NULL AND a.n < 1000
)
SELECT",
    row_columns!(),
    "
FROM awaited a CROSS JOIN rowlock_lock l ON l.name = a.name
LEFT JOIN rowlock_session s ON s.id = l.session_id
ORDER BY l.name"
);

const WAITERS: &str = "
SELECT w.name, w.position, w.holder, w.session_id, w.joined_at, now.us - w.joined_at
FROM rowlock_waiter w
CROSS JOIN rowlock_session s ON s.id = w.session_id,
     (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE w.name = ?1 AND w.position > ?2 AND s.expires_at > now.us
ORDER BY w.position LIMIT 1000";

#[async_trait]
impl ListStore for SqliteConnection {
    async fn list_rows(&mut self, range: &KeyRange) -> Result<Vec<LockRow>, Fault> {
        let rows = sqlx::query_as(ROWS).bind(&*range.from).bind(&*range.until);
        Ok(rows.fetch_all(self).await?)
    }

    async fn list_awaited(&mut self, range: &KeyRange) -> Result<Vec<LockRow>, Fault> {
        let rows = sqlx::query_as(AWAITED).bind(&*range.from);
        Ok(rows.bind(&*range.until).fetch_all(self).await?)
    }

    async fn list_waiters(&mut self, name: &Name, after: i64) -> Result<Vec<WaiterRow>, Fault> {
        let rows = sqlx::query_as(WAITERS).bind(name.as_bytes()).bind(after);
        Ok(rows.fetch_all(self).await?)
    }
}
