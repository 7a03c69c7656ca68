//! Pauses: the statements.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{FromRow, MySqlConnection};

use super::lock_row::{make_row, pause_columns};
use super::statement::{hex, in_one_transaction, text, with};
use crate::model::{Kind, Name};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::pause::{PauseParams, PauseRow, PauseStore};
use crate::store::verbs::time::to_micros;

/// The row is locked before, so the clock is read after the wait for it. None is read that was missing then: another
/// connection may have made it meanwhile.
const BEGIN: &str = concat!(
    "\
SELECT MAX(fence) INTO @rl_fence FROM rowlock_lock WHERE name = {name} FOR UPDATE;
UPDATE rowlock_lock
  SET paused_until = COALESCE(SYSDATE(6) + INTERVAL {time} MICROSECOND, CAST('9999-12-31' AS DATETIME(6))),
      paused_by = {by}, paused_why = {why}
  WHERE name = {name};
SELECT l.name, ",
    pause_columns!("SYSDATE(6)"),
    " FROM rowlock_lock l WHERE l.name = {name} AND @rl_fence IS NOT NULL"
);

const END: &str = "
UPDATE rowlock_lock SET paused_until = NULL, paused_by = NULL, paused_why = NULL
WHERE name = ? AND paused_until IS NOT NULL";

#[async_trait]
impl PauseStore for MySqlConnection {
    async fn pause_begin(
        &mut self,
        params: &PauseParams,
        _limit: Duration,
    ) -> Result<PauseRow, Fault> {
        let time = params.time.map(|time| to_micros(time).to_string());
        let begin = with(
            BEGIN,
            &[
                ("name", hex(params.name.as_bytes())),
                ("time", time.unwrap_or_else(|| "NULL".into())),
                ("by", text(&params.by)),
                ("why", text(&params.why)),
            ],
        );
        let mut rows = in_one_transaction(self, &begin).await?;
        if rows.is_empty() {
            make_row(self, &params.name, Kind::Lock).await?;
            rows = in_one_transaction(self, &begin).await?;
        }
        // Without a row: it was removed just now, by hand.
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        Ok(PauseRow::from_row(row)?)
    }

    async fn pause_end(&mut self, name: &Name, _limit: Duration) -> Result<(), Fault> {
        let end = sqlx::query(END).bind(name.as_bytes());
        end.execute(self).await?;
        Ok(())
    }
}
