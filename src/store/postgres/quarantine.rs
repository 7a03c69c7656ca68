//! Quarantine: the statements.
//!
//! The condition below has no column of the statement around it. So the server evaluates it once for each statement, before it looks for rows.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::PgConnection;

use super::query_scalar;
use crate::store::fault::Fault;
use crate::store::quarantine::QuarantineStore;
use crate::store::{micros, to_micros};

/// Whether the database is in no quarantine.
macro_rules! may_grant {
    () => {
        "NOT EXISTS (SELECT FROM rowlock_database q WHERE q.quarantine_until > clock_timestamp())"
    };
}
pub(super) use may_grant;

/// How many microseconds the quarantine of the database `d` lasts; NULL: there is none.
macro_rules! quarantine_left {
    () => {
        "CASE WHEN d.quarantine_until > clock_timestamp()
              THEN (extract(epoch FROM d.quarantine_until - clock_timestamp()) * 1000000)::bigint END"
    };
}
pub(super) use quarantine_left;

/// GREATEST ignores NULL.
const BEGIN: &str = "
UPDATE rowlock_database
SET quarantine_until = GREATEST(quarantine_until, clock_timestamp() + $1 * interval '1 microsecond')
RETURNING (extract(epoch FROM quarantine_until - clock_timestamp()) * 1000000)::bigint";

const END: &str = "
UPDATE rowlock_database d SET quarantine_until = NULL
FROM (SELECT one, quarantine_until FROM rowlock_database FOR UPDATE) before
WHERE d.one = before.one AND before.quarantine_until IS NOT NULL
RETURNING before.quarantine_until > clock_timestamp()";

const LEFT: &str = concat!("SELECT ", quarantine_left!(), " FROM rowlock_database d");

#[async_trait]
impl QuarantineStore for PgConnection {
    async fn quarantine_begin(
        &mut self,
        time: Duration,
        _limit: Duration,
    ) -> Result<Duration, Fault> {
        let begin = query_scalar(BEGIN).bind(to_micros(time));
        Ok(micros(begin.fetch_one(self).await?))
    }

    async fn quarantine_end(&mut self, _limit: Duration) -> Result<bool, Fault> {
        let ended: Option<bool> = query_scalar(END).fetch_optional(self).await?;
        Ok(ended.unwrap_or(false))
    }

    async fn quarantine_left(&mut self) -> Result<Option<Duration>, Fault> {
        let left: Option<Option<i64>> = query_scalar(LEFT).fetch_optional(self).await?;
        Ok(left.flatten().map(micros))
    }
}
