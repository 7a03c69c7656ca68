//! Pauses: the statements.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::writing::durably;
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::pause::{NO_END, PauseParams, PauseRow, PauseStore};
use crate::store::verbs::time::to_micros;

const BEGIN: &str = "
INSERT INTO rowlock_lock (name, fence, paused_until, paused_by, paused_why)
SELECT ?1, now.us, coalesce(now.us + ?2 + 1000, ?5), ?3, ?4
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE true
ON CONFLICT (name) DO UPDATE
SET paused_until = excluded.paused_until, paused_by = excluded.paused_by, paused_why = excluded.paused_why
RETURNING name, paused_until, paused_until - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - 1000,
          paused_by, paused_why";

const END: &str = "
UPDATE rowlock_lock SET paused_until = NULL, paused_by = NULL, paused_why = NULL
WHERE name = ?1 AND paused_until IS NOT NULL";

#[async_trait]
impl PauseStore for SqliteConnection {
    async fn pause_begin(
        &mut self,
        params: &PauseParams,
        _limit: Duration,
    ) -> Result<PauseRow, Fault> {
        let mut begun: Vec<PauseRow> = durably(self, async |conn| {
            sqlx::query_as(BEGIN)
                .bind(params.name.as_bytes())
                .bind(params.time.map(to_micros))
                .bind(&*params.by)
                .bind(&*params.why)
                .bind(NO_END)
                .fetch_all(conn)
                .await
        })
        .await?;
        Ok(begun.pop().ok_or(sqlx::Error::RowNotFound)?)
    }

    async fn pause_end(&mut self, name: &Name, _limit: Duration) -> Result<(), Fault> {
        durably(self, async |conn| {
            sqlx::query(END).bind(name.as_bytes()).execute(conn).await?;
            Ok(())
        })
        .await
    }
}
