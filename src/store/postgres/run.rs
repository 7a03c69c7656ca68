//! The last runs of the work under a lock: the statements.

use async_trait::async_trait;
use sqlx::PgConnection;

use super::lock_row::row_ends;
use super::{query, query_as, query_scalar};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::run::{KEPT, MOST, RunEnd, RunParams, RunRow, RunStore};
use crate::store::verbs::time::to_micros;

const BEGIN: &str = concat!(
    "
INSERT INTO rowlock_run (name, grant_id, fence, holder, began_at)
SELECT l.name, l.grant_id, $3, l.holder, clock_timestamp()
FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name = $1 AND l.grant_id = $2 AND ",
    row_ends!(),
    " > clock_timestamp()
  AND NOT EXISTS (SELECT FROM rowlock_run n WHERE n.name = $1 AND n.fence > $3)
ON CONFLICT (name, fence) DO NOTHING"
);

const IS_LAST: &str = "
SELECT EXISTS (SELECT FROM rowlock_run WHERE name = $1 AND grant_id = $2 AND fence = $3)
   AND NOT EXISTS (SELECT FROM rowlock_run n WHERE n.name = $1 AND n.fence > $3)";

/// Row locks are skipped, as everywhere.
const FORGET: &str = "
DELETE FROM rowlock_run WHERE (name, fence) IN (
    SELECT name, fence FROM rowlock_run WHERE name = $1 ORDER BY fence DESC OFFSET $2 FOR UPDATE SKIP LOCKED)";

const END: &str = "
UPDATE rowlock_run SET ended_at = COALESCE(ended_at, clock_timestamp()), succeeded = $4, message = $5
WHERE name = $1 AND grant_id = $2 AND fence = $3 AND (ended_at IS NULL OR succeeded = $4 AND message = $5)
  AND NOT EXISTS (SELECT FROM rowlock_run n WHERE n.name = $1 AND n.fence > $3)";

/// Reads runs.
macro_rules! read_runs {
    ($which:literal) => {
        concat!(
    "
SELECT r.name, r.fence, r.holder, (extract(epoch FROM r.began_at) * 1000000)::bigint,
       (extract(epoch FROM COALESCE(r.ended_at, clock_timestamp()) - r.began_at) * 1000000)::bigint,
       r.succeeded, r.message, COALESCE(",
    row_ends!(),
    " > clock_timestamp(), false)
FROM rowlock_run r LEFT JOIN rowlock_lock l ON l.name = r.name AND l.grant_id = r.grant_id
LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE ",
            $which
        )
    };
}

const LAST: &str = read_runs!(
    "NOT EXISTS (SELECT FROM rowlock_run n WHERE n.name = r.name AND n.fence > r.fence) ORDER BY r.name"
);

const OF_NAME: &str = read_runs!("r.name = $1 ORDER BY r.fence DESC");

const CLEAN: &str = "
DELETE FROM rowlock_run WHERE (name, fence) IN (
    SELECT name, fence FROM rowlock_run WHERE began_at < clock_timestamp() - $2 * interval '1 microsecond'
    LIMIT $1 FOR UPDATE SKIP LOCKED)";

#[async_trait]
impl RunStore for PgConnection {
    async fn run_begin(&mut self, params: &RunParams) -> Result<bool, Fault> {
        let begin = query(BEGIN)
            .bind(params.name.as_bytes())
            .bind(params.grant_id);
        let begun = begin.bind(params.fence).execute(&mut *self).await?;
        if begun.rows_affected() > 0 {
            let forget = query(FORGET).bind(params.name.as_bytes()).bind(MOST);
            forget.execute(self).await?;
            return Ok(true);
        }
        let is_last = query_scalar(IS_LAST).bind(params.name.as_bytes());
        let is_last = is_last.bind(params.grant_id).bind(params.fence);
        Ok(is_last.fetch_one(self).await?)
    }

    async fn run_end(&mut self, params: &RunParams, end: &RunEnd) -> Result<bool, Fault> {
        let ended = query(END)
            .bind(params.name.as_bytes())
            .bind(params.grant_id)
            .bind(params.fence)
            .bind(end.succeeded)
            .bind(&*end.message);
        Ok(ended.execute(self).await?.rows_affected() > 0)
    }

    async fn run_list(&mut self, name: Option<&Name>) -> Result<Vec<RunRow>, Fault> {
        let rows = match name {
            Some(name) => query_as(OF_NAME).bind(name.as_bytes()),
            None => query_as(LAST),
        };
        Ok(rows.fetch_all(self).await?)
    }

    async fn run_clean(&mut self, limit: u32) -> Result<(), Fault> {
        let clean = query(CLEAN).bind(i64::from(limit)).bind(to_micros(KEPT));
        clean.execute(self).await?;
        Ok(())
    }
}
