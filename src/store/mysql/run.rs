//! The last runs of the work under a lock: the statements.
//!
//! A duplicate is caught, as everywhere. A table that a statement changes may be read in it through a derived table
//! only.

use async_trait::async_trait;
use sqlx::{MySqlConnection, Row};

use super::lock_row::{is_duplicate, row_ends};
use super::statement::{fill, hex, in_one_transaction, read_as};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::run::{KEPT, MOST, RunEnd, RunParams, RunRow, RunStore};
use crate::store::verbs::time::to_micros;

/// The holder of the live grant. Nothing else reads the lock's row: a statement that changes another row would wait
/// for a transaction that has this one locked.
const HOLDER: &str = concat!(
    "
SELECT l.holder FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name = ? AND l.grant_id = ? AND ",
    row_ends!(),
    " > SYSDATE(6)"
);

const INSERT: &str = "
INSERT INTO rowlock_run (name, grant_id, fence, holder, began_at) VALUES (?, ?, ?, ?, SYSDATE(6))";

/// The greatest fence of a run.
const LAST_FENCE: &str = "SELECT MAX(fence) FROM rowlock_run WHERE name = ?";

/// The fence of the first run that is not kept.
const OLD: &str =
    "SELECT fence FROM rowlock_run WHERE name = ? ORDER BY fence DESC LIMIT 1 OFFSET ?";

const FORGET: &str = "DELETE r FROM rowlock_run r WHERE r.name = ? AND r.fence <= ?";

const IS_THERE: &str = "SELECT 1 FROM rowlock_run WHERE name = ? AND grant_id = ? AND fence = ?";

const END: &str = "
UPDATE rowlock_run r JOIN (SELECT MAX(fence) AS fence FROM rowlock_run WHERE name = ?) m ON m.fence = r.fence
SET r.ended_at = COALESCE(r.ended_at, SYSDATE(6)), r.succeeded = ?, r.message = ?
WHERE r.name = ? AND r.grant_id = ? AND r.fence = ? AND (r.ended_at IS NULL OR r.succeeded = ? AND r.message = ?)";

const LIST: &str = concat!(
    "
SELECT r.name, r.fence, r.holder, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', r.began_at),
       TIMESTAMPDIFF(MICROSECOND, r.began_at, COALESCE(r.ended_at, SYSDATE(6))),
       r.succeeded, r.message, COALESCE(",
    row_ends!(),
    " > SYSDATE(6), FALSE)
FROM rowlock_run r LEFT JOIN rowlock_lock l ON l.name = r.name AND l.grant_id = r.grant_id
LEFT JOIN rowlock_session s ON s.id = l.session_id"
);

const IS_LAST: &str = "
 WHERE NOT EXISTS (SELECT 1 FROM rowlock_run n WHERE n.name = r.name AND n.fence > r.fence) ORDER BY r.name";

const CLEAN: &str = "
DELETE FROM rowlock_run WHERE began_at < SYSDATE(6) - INTERVAL ? MICROSECOND LIMIT ?";

#[async_trait]
impl RunStore for MySqlConnection {
    async fn run_begin(&mut self, params: &RunParams) -> Result<bool, Fault> {
        let (name, id) = (hex(params.name.as_bytes()), hex(params.grant_id.as_bytes()));
        let live = in_one_transaction(self, &fill(HOLDER, &[name.clone(), id.clone()])).await?;
        let Some(live) = live.first() else {
            return Ok(false);
        };
        let holder: String = live.try_get(0)?;
        let last = sqlx::query_scalar(LAST_FENCE).bind(params.name.as_bytes());
        let last: Option<i64> = last.fetch_one(&mut *self).await?;
        if last.is_none_or(|last| last < params.fence) {
            let insert = sqlx::query(INSERT)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .bind(params.fence)
                .bind(&holder);
            match insert.execute(&mut *self).await {
                Err(error) if is_duplicate(&error) => {}
                inserted => {
                    inserted?;
                    forget(self, &params.name).await?;
                    return Ok(true);
                }
            }
        }
        let is_there = fill(IS_THERE, &[name, id, params.fence.to_string()]);
        Ok(!in_one_transaction(self, &is_there).await?.is_empty())
    }

    async fn run_end(&mut self, params: &RunParams, end: &RunEnd) -> Result<bool, Fault> {
        let ended = sqlx::query(END)
            .bind(params.name.as_bytes())
            .bind(end.succeeded)
            .bind(&*end.message)
            .bind(params.name.as_bytes())
            .bind(params.grant_id)
            .bind(params.fence)
            .bind(end.succeeded)
            .bind(&*end.message);
        Ok(ended.execute(self).await?.rows_affected() > 0)
    }

    async fn run_list(&mut self, name: Option<&Name>) -> Result<Vec<RunRow>, Fault> {
        let which = name.map_or_else(
            || IS_LAST.to_owned(),
            |name| {
                let name = hex(name.as_bytes());
                format!(" WHERE r.name = {name} ORDER BY r.fence DESC")
            },
        );
        Ok(read_as(self, &format!("{LIST}{which}")).await?)
    }

    async fn run_clean(&mut self, limit: u32) -> Result<(), Fault> {
        let clean = sqlx::query(CLEAN).bind(to_micros(KEPT)).bind(limit);
        clean.execute(self).await?;
        Ok(())
    }
}

/// Removes the runs before the last [`MOST`].
async fn forget(conn: &mut MySqlConnection, name: &Name) -> Result<(), sqlx::Error> {
    let old = sqlx::query_scalar(OLD).bind(name.as_bytes()).bind(MOST);
    let old: Option<i64> = old.fetch_optional(&mut *conn).await?;
    if let Some(fence) = old {
        let forget = sqlx::query(FORGET).bind(name.as_bytes()).bind(fence);
        forget.execute(conn).await?;
    }
    Ok(())
}
