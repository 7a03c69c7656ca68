//! The last run of the work under a lock: the statements.
//!
//! A duplicate is caught, as everywhere: ON DUPLICATE KEY UPDATE would deadlock on gaps.

use async_trait::async_trait;
use sqlx::{MySqlConnection, Row};

use super::lock_row::{is_duplicate, row_ends};
use super::statement::{fill, hex, read_alone, read_as};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::run::{KEPT, RunEnd, RunParams, RunRow, RunStore};
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

const REPLACE: &str = "
UPDATE rowlock_run
SET grant_id = ?, fence = ?, holder = ?, began_at = SYSDATE(6), ended_at = NULL, succeeded = NULL, message = NULL
WHERE name = ? AND fence < ?";

const IS_THERE: &str = "SELECT 1 FROM rowlock_run WHERE name = ? AND grant_id = ? AND fence = ?";

const END: &str = "
UPDATE rowlock_run SET ended_at = COALESCE(ended_at, SYSDATE(6)), succeeded = ?, message = ?
WHERE name = ? AND grant_id = ? AND fence = ? AND (ended_at IS NULL OR succeeded = ? AND message = ?)";

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

const CLEAN: &str = "
DELETE FROM rowlock_run WHERE began_at < SYSDATE(6) - INTERVAL ? MICROSECOND LIMIT ?";

#[async_trait]
impl RunStore for MySqlConnection {
    async fn run_begin(&mut self, params: &RunParams) -> Result<bool, Fault> {
        let (name, id) = (hex(params.name.as_bytes()), hex(params.grant_id.as_bytes()));
        let live = read_alone(self, &fill(HOLDER, &[name.clone(), id.clone()])).await?;
        let Some(live) = live.first() else {
            return Ok(false);
        };
        let holder: String = live.try_get(0)?;
        let insert = sqlx::query(INSERT)
            .bind(params.name.as_bytes())
            .bind(params.grant_id)
            .bind(params.fence)
            .bind(&holder);
        let begun = match insert.execute(&mut *self).await {
            Err(error) if is_duplicate(&error) => {
                let replace = sqlx::query(REPLACE)
                    .bind(params.grant_id)
                    .bind(params.fence)
                    .bind(&holder)
                    .bind(params.name.as_bytes())
                    .bind(params.fence);
                replace.execute(&mut *self).await?
            }
            inserted => inserted?,
        };
        if begun.rows_affected() > 0 {
            return Ok(true);
        }
        let is_there = fill(IS_THERE, &[name, id, params.fence.to_string()]);
        Ok(!read_alone(self, &is_there).await?.is_empty())
    }

    async fn run_end(&mut self, params: &RunParams, end: &RunEnd) -> Result<bool, Fault> {
        let ended = sqlx::query(END)
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
        let of = name.map_or_else(String::new, |name| {
            format!(" WHERE r.name = {}", hex(name.as_bytes()))
        });
        Ok(read_as(self, &format!("{LIST}{of} ORDER BY r.name")).await?)
    }

    async fn run_clean(&mut self, limit: u32) -> Result<(), Fault> {
        let clean = sqlx::query(CLEAN).bind(to_micros(KEPT)).bind(limit);
        clean.execute(self).await?;
        Ok(())
    }
}
