//! Quarantine: the statements.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{MySqlConnection, Row};

use super::statement::{fill, in_one_transaction, read_alone};
use crate::store::fault::Fault;
use crate::store::quarantine::QuarantineStore;
use crate::store::{micros, to_micros};

/// Whether the database is in no quarantine.
macro_rules! may_grant {
    () => {
        "NOT EXISTS (SELECT 1 FROM rowlock_database q WHERE q.quarantine_until > SYSDATE(6))"
    };
}
pub(super) use may_grant;

/// The row is locked first, so the clock is read after the wait for it.
const BEGIN: &str = "\
SELECT quarantine_until FROM rowlock_database FOR UPDATE;
UPDATE rowlock_database
SET quarantine_until = GREATEST(COALESCE(quarantine_until, '1970-01-02'), SYSDATE(6) + INTERVAL ? MICROSECOND);
SELECT TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), quarantine_until) FROM rowlock_database";

const END: &str = "\
SELECT COALESCE(quarantine_until > SYSDATE(6), FALSE) FROM rowlock_database FOR UPDATE;
UPDATE rowlock_database SET quarantine_until = NULL";

const LEFT: &str = "
SELECT TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), quarantine_until)
FROM rowlock_database WHERE quarantine_until > SYSDATE(6)";

#[async_trait]
impl QuarantineStore for MySqlConnection {
    async fn quarantine_begin(&mut self, time: Duration) -> Result<Duration, Fault> {
        let begin = fill(BEGIN, &[to_micros(time).to_string()]);
        let rows = in_one_transaction(self, &begin).await?;
        let left = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        Ok(micros(left.try_get(0)?))
    }

    async fn quarantine_end(&mut self) -> Result<bool, Fault> {
        let rows = in_one_transaction(self, END).await?;
        let before = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(before.try_get(0)?)
    }

    async fn quarantine_left(&mut self) -> Result<Option<Duration>, Fault> {
        let rows = read_alone(self, LEFT).await?;
        let left = rows.first().map(|row| row.try_get(0)).transpose()?;
        Ok(left.map(micros))
    }
}
