//! Quarantine: the statements.
//!
//! The condition below has no column of the statement around it. So the server evaluates it once for each statement,
//! before it looks for rows.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::PgConnection;

use super::{query, query_as, query_scalar};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::quarantine::{Quarantine, QuarantineStore};
use crate::store::verbs::time::{micros, to_micros};

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
SET quarantine_until = GREATEST(quarantine_until + interval '1 microsecond', clock_timestamp() + $1 * interval '1 microsecond')
RETURNING (extract(epoch FROM quarantine_until - clock_timestamp()) * 1000000)::bigint";

const END: &str = "
UPDATE rowlock_database SET quarantine_until = NULL
WHERE (extract(epoch FROM quarantine_until) * 1000000)::bigint = $1";

const SEEN: &str = concat!(
    "SELECT (extract(epoch FROM d.quarantine_until) * 1000000)::bigint, ",
    quarantine_left!(),
    " FROM rowlock_database d WHERE d.quarantine_until > clock_timestamp()"
);

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

    async fn quarantine_end(&mut self, id: i64, _limit: Duration) -> Result<(), Fault> {
        query(END).bind(id).execute(self).await?;
        Ok(())
    }

    async fn quarantine_seen(&mut self) -> Result<Option<Quarantine>, Fault> {
        let seen: Option<(i64, Option<i64>)> = query_as(SEEN).fetch_optional(self).await?;
        // It may run out in the middle of the statement.
        Ok(seen.and_then(|(id, left)| {
            Some(Quarantine {
                id,
                left: micros(left?),
            })
        }))
    }
}
