//! The last runs of the work under a lock: the statements. Their times follow the rules of `lease.rs`.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::lock_row::row_ends;
use super::writing::durably;
use crate::model::Name;
use crate::store::driver::write_turn;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::run::{KEPT, MOST, RunEnd, RunParams, RunRow, RunStore};
use crate::store::verbs::time::to_micros;

const BEGIN: &str = concat!(
    "
INSERT INTO rowlock_run (name, grant_id, fence, holder, began_at)
SELECT l.name, l.grant_id, ?3, l.holder, now.us
FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id,
     (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE l.name = ?1 AND l.grant_id = ?2 AND ",
    row_ends!(),
    " > now.us
  AND NOT EXISTS (SELECT 1 FROM rowlock_run n WHERE n.name = ?1 AND n.fence > ?3)
ON CONFLICT (name, fence) DO NOTHING"
);

const IS_LAST: &str = "
SELECT EXISTS (SELECT 1 FROM rowlock_run WHERE name = ?1 AND grant_id = ?2 AND fence = ?3)
   AND NOT EXISTS (SELECT 1 FROM rowlock_run n WHERE n.name = ?1 AND n.fence > ?3)";

const END: &str = "
UPDATE rowlock_run
SET ended_at = coalesce(ended_at, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000),
    succeeded = ?4, message = ?5
WHERE name = ?1 AND grant_id = ?2 AND fence = ?3 AND (ended_at IS NULL OR succeeded = ?4 AND message = ?5)
  AND NOT EXISTS (SELECT 1 FROM rowlock_run n WHERE n.name = ?1 AND n.fence > ?3)";

const FORGET: &str = "
DELETE FROM rowlock_run WHERE name = ?1 AND fence IN (
    SELECT fence FROM rowlock_run WHERE name = ?1 ORDER BY fence DESC LIMIT -1 OFFSET ?2)";

/// Reads runs.
macro_rules! read_runs {
    ($which:literal) => {
        concat!(
    "
SELECT r.name, r.fence, r.holder, r.began_at, coalesce(r.ended_at, now.us) - r.began_at, r.succeeded, r.message,
       coalesce(",
    row_ends!(),
    " > now.us, FALSE)
FROM rowlock_run r LEFT JOIN rowlock_lock l ON l.name = r.name AND l.grant_id = r.grant_id
     LEFT JOIN rowlock_session s ON s.id = l.session_id,
     (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE ",
            $which
        )
    };
}

const LAST: &str = read_runs!(
    "NOT EXISTS (SELECT 1 FROM rowlock_run n WHERE n.name = r.name AND n.fence > r.fence) ORDER BY r.name"
);

const OF_NAME: &str = read_runs!("r.name = ?1 ORDER BY r.fence DESC");

const CLEAN: &str = "
DELETE FROM rowlock_run WHERE (name, fence) IN (
    SELECT name, fence FROM rowlock_run
    WHERE began_at < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - ?2 LIMIT ?1)";

#[async_trait]
impl RunStore for SqliteConnection {
    async fn run_begin(&mut self, params: &RunParams) -> Result<bool, Fault> {
        durably(self, async |conn| {
            let begin = sqlx::query(BEGIN).bind(params.name.as_bytes());
            let begin = begin.bind(params.grant_id).bind(params.fence);
            if begin.execute(&mut *conn).await?.rows_affected() > 0 {
                let forget = sqlx::query(FORGET).bind(params.name.as_bytes()).bind(MOST);
                forget.execute(conn).await?;
                return Ok(true);
            }
            let is_last = sqlx::query_scalar(IS_LAST).bind(params.name.as_bytes());
            let is_last = is_last.bind(params.grant_id).bind(params.fence);
            is_last.fetch_one(conn).await
        })
        .await
    }

    async fn run_end(&mut self, params: &RunParams, end: &RunEnd) -> Result<bool, Fault> {
        durably(self, async |conn| {
            let ended = sqlx::query(END)
                .bind(params.name.as_bytes())
                .bind(params.grant_id)
                .bind(params.fence)
                .bind(end.succeeded)
                .bind(&*end.message);
            Ok(ended.execute(conn).await?.rows_affected() > 0)
        })
        .await
    }

    async fn run_list(&mut self, name: Option<&Name>) -> Result<Vec<RunRow>, Fault> {
        let rows = match name {
            Some(name) => sqlx::query_as(OF_NAME).bind(name.as_bytes()),
            None => sqlx::query_as(LAST),
        };
        Ok(rows.fetch_all(self).await?)
    }

    async fn run_clean(&mut self, limit: u32) -> Result<(), Fault> {
        let _turn = write_turn::turn().await;
        let clean = sqlx::query(CLEAN).bind(limit).bind(to_micros(KEPT));
        clean.execute(self).await?;
        Ok(())
    }
}
