//! Pauses: the statements.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::PgConnection;

use super::lock_row::pause_columns;
use super::{query, query_as};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::pause::{PauseParams, PauseRow, PauseStore};
use crate::store::verbs::time::to_micros;

/// The clock is read after the row is locked.
const BEGIN: &str = concat!(
    "
WITH l AS (
    INSERT INTO rowlock_lock AS r (name, fence, paused_until, paused_by, paused_why)
    VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
            COALESCE(clock_timestamp() + $2 * interval '1 microsecond', '9999-12-31 00:00:00+00'), $3, $4)
    ON CONFLICT (name) DO UPDATE
    SET paused_until = COALESCE(clock_timestamp() + $2 * interval '1 microsecond', '9999-12-31 00:00:00+00'),
        paused_by = $3, paused_why = $4
    RETURNING r.*
)
SELECT l.name, ",
    pause_columns!(),
    " FROM l"
);

const END: &str = "
UPDATE rowlock_lock SET paused_until = NULL, paused_by = NULL, paused_why = NULL
WHERE name = $1 AND paused_until IS NOT NULL";

/// Limits the wait for a row in this transaction. Otherwise the server would go on after the caller has gone.
const LIMIT: &str = "SELECT set_config('lock_timeout', $1, true)";

#[async_trait]
impl PauseStore for PgConnection {
    async fn pause_begin(
        &mut self,
        params: &PauseParams,
        limit: Duration,
    ) -> Result<PauseRow, Fault> {
        let mut tx = sqlx::Connection::begin(self).await?;
        let wait = query(LIMIT).bind((limit / 2).as_millis().to_string());
        wait.execute(&mut *tx).await?;
        let begun = query_as(BEGIN)
            .bind(params.name.as_bytes())
            .bind(params.time.map(to_micros))
            .bind(&*params.by)
            .bind(&*params.why)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(begun)
    }

    async fn pause_end(&mut self, name: &Name, limit: Duration) -> Result<(), Fault> {
        let mut tx = sqlx::Connection::begin(self).await?;
        let wait = query(LIMIT).bind((limit / 2).as_millis().to_string());
        wait.execute(&mut *tx).await?;
        let end = query(END).bind(name.as_bytes());
        end.execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }
}
