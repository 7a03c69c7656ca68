//! Lists for operators: the statements. A limit that is written out lets the planner expect few rows, and read them by
//! key.

use async_trait::async_trait;
use sqlx::PgConnection;

use super::lock_row::{row_columns, row_ends};
use super::query_as;
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
FROM (SELECT * FROM rowlock_lock WHERE name >= $1 AND name < $2 ORDER BY name LIMIT 1000) l
LEFT JOIN rowlock_session s ON s.id = l.session_id
ORDER BY l.name"
);

/// From each name that has a waiter to the next one, by the primary key.
const AWAITED: &str = concat!(
    "
WITH RECURSIVE awaited (name, n) AS (
    SELECT (SELECT w.name FROM rowlock_waiter w WHERE w.name >= $1 AND w.name < $2 ORDER BY w.name LIMIT 1), 1
    UNION ALL
    SELECT (SELECT w.name FROM rowlock_waiter w WHERE w.name > a.name AND w.name < $2 ORDER BY w.name LIMIT 1), a.n + 1
    FROM awaited a WHERE a.name IS NOT NULL AND a.n < 1000
)
SELECT",
    row_columns!(),
    "
FROM (SELECT name FROM awaited LIMIT 1000) a JOIN rowlock_lock l ON l.name = a.name
LEFT JOIN rowlock_session s ON s.id = l.session_id
ORDER BY l.name"
);

const WAITERS: &str = "
SELECT w.name, w.position, w.holder, w.session_id,
       (extract(epoch FROM w.joined_at) * 1000000)::bigint,
       (extract(epoch FROM clock_timestamp() - w.joined_at) * 1000000)::bigint
FROM rowlock_waiter w JOIN rowlock_session s ON s.id = w.session_id
WHERE w.name = $1 AND w.position > $2 AND s.expires_at > clock_timestamp()
ORDER BY w.position LIMIT 1000";

#[async_trait]
impl ListStore for PgConnection {
    async fn list_rows(&mut self, range: &KeyRange) -> Result<Vec<LockRow>, Fault> {
        let rows = query_as(ROWS).bind(&*range.from).bind(&*range.until);
        Ok(rows.fetch_all(self).await?)
    }

    async fn list_awaited(&mut self, range: &KeyRange) -> Result<Vec<LockRow>, Fault> {
        let rows = query_as(AWAITED).bind(&*range.from).bind(&*range.until);
        Ok(rows.fetch_all(self).await?)
    }

    async fn list_waiters(&mut self, name: &Name, after: i64) -> Result<Vec<WaiterRow>, Fault> {
        let rows = query_as(WAITERS).bind(name.as_bytes()).bind(after);
        Ok(rows.fetch_all(self).await?)
    }
}
