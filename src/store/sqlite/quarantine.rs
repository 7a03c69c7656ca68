//! Quarantine: the statements. Their times follow the rules of `lease.rs`.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::writing::durably;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::quarantine::{Quarantine, QuarantineStore};
use crate::store::verbs::time::{micros, to_micros};

const BEGIN: &str = "
UPDATE rowlock_database
SET quarantine_until = max(coalesce(quarantine_until, 0) + 1, now.us + ?1 + 1000)
FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
RETURNING quarantine_until - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - 1000";

const END: &str = "UPDATE rowlock_database SET quarantine_until = NULL WHERE quarantine_until = ?1";

const SEEN: &str = "
SELECT d.quarantine_until, d.quarantine_until - now.us
FROM rowlock_database d, (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE d.quarantine_until > now.us";

pub(super) async fn seen(conn: &mut SqliteConnection) -> Result<Option<Quarantine>, sqlx::Error> {
    sqlx::query_as(SEEN).fetch_optional(conn).await
}

pub(super) async fn is_quarantined(conn: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    Ok(seen(conn).await?.is_some())
}

#[async_trait]
impl QuarantineStore for SqliteConnection {
    async fn quarantine_begin(
        &mut self,
        time: Duration,
        _limit: Duration,
    ) -> Result<Duration, Fault> {
        let left: Vec<i64> = durably(self, async |conn| {
            let begin = sqlx::query_scalar(BEGIN).bind(to_micros(time));
            begin.fetch_all(conn).await
        })
        .await?;
        let left = left.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(micros(*left))
    }

    async fn quarantine_end(&mut self, id: i64, _limit: Duration) -> Result<(), Fault> {
        durably(self, async |conn| {
            sqlx::query(END).bind(id).execute(conn).await?;
            Ok(())
        })
        .await
    }

    async fn quarantine_seen(&mut self) -> Result<Option<Quarantine>, Fault> {
        Ok(seen(self).await?)
    }
}
