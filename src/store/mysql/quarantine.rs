//! Quarantine: the statements.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{MySqlConnection, Row};

use super::statement::{fill, in_one_transaction, read_as};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::quarantine::{Quarantine, QuarantineStore};
use crate::store::verbs::time::{micros, to_micros};

/// Locks the row. MySQL takes the limit from the hint, in milliseconds; MariaDB from the prefix, in seconds.
fn lock_text(limit: Duration) -> String {
    let ms = limit.as_millis().max(1);
    let (seconds, rest) = (ms / 1_000, ms % 1_000);
    format!(
        "/*M! SET STATEMENT max_statement_time = {seconds}.{rest:03} FOR */ SELECT /*+ MAX_EXECUTION_TIME({ms}) */ \
         one FROM rowlock_database FOR UPDATE"
    )
}

/// The row is locked before, so the clock is read after the wait for it.
const BEGIN: &str = "\
UPDATE rowlock_database
SET quarantine_until = GREATEST(COALESCE(quarantine_until, '1970-01-02') + INTERVAL 1 MICROSECOND, SYSDATE(6) + INTERVAL ? MICROSECOND);
SELECT TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), quarantine_until) FROM rowlock_database";

const END: &str = "\
UPDATE rowlock_database SET quarantine_until = NULL
WHERE TIMESTAMPDIFF(MICROSECOND, '1970-01-01', quarantine_until) = ?";

const SEEN: &str = "
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', quarantine_until),
       TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), quarantine_until)
FROM rowlock_database WHERE quarantine_until > SYSDATE(6)";

#[async_trait]
impl QuarantineStore for MySqlConnection {
    async fn quarantine_begin(
        &mut self,
        time: Duration,
        limit: Duration,
    ) -> Result<Duration, Fault> {
        let begin = fill(BEGIN, &[to_micros(time).to_string()]);
        let text = format!("{}; {begin}", lock_text(limit));
        let rows = in_one_transaction(self, &text).await?;
        let left = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        Ok(micros(left.try_get(0)?))
    }

    async fn quarantine_end(&mut self, id: i64, limit: Duration) -> Result<(), Fault> {
        let end = fill(END, &[id.to_string()]);
        let text = format!("{}; {end}", lock_text(limit));
        in_one_transaction(self, &text).await?;
        Ok(())
    }

    async fn quarantine_seen(&mut self) -> Result<Option<Quarantine>, Fault> {
        Ok(read_as(self, SEEN).await?.pop())
    }
}
