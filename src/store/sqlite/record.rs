//! Idempotency records: the statements.
//!
//! A writer has the whole file to itself. The clock is read after BEGIN IMMEDIATE, in whole milliseconds; a lease is
//! set to end one later.

use async_trait::async_trait;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::grant_rule::may_grant;
use super::writing::durably;
use crate::model::RecordKey;
use crate::store::driver::{json, write_turn};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::RenewOutcome;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, EndColumns, FinishOutcome, FinishParams, KeepParams, KeyNumber,
    RecordStore, claim_outcomes, number_of, unclaimed,
};
use crate::store::verbs::record_row::{RecordRow, plain_columns};
use crate::store::verbs::time::{micros, to_micros};

/// The columns of a record, but its outcome, at the time `now.us`.
macro_rules! read_records {
    ($outcome:literal, $from:literal) => {
        concat!(
            "SELECT ",
            plain_columns!(),
            ", r.open_step, r.began_at, r.attempted_at, r.lease_until, r.done_at, r.lease_until - now.us - 1000 AS lease_left,
       r.retain_until - now.us AS retain_left, r.forget_at - now.us AS forget_left, ",
            $outcome,
            " FROM ",
            $from
        )
    };
}
pub(super) use read_records;

const READ: &str = read_records!(
    "CASE WHEN length(r.outcome) <= ?2 THEN r.outcome END AS outcome, length(r.outcome) AS outcome_size",
    "json_each(?1) a CROSS JOIN rowlock_idempotency r ON r.scope = unhex(a.value ->> 0) AND r.idempotency_key = unhex(a.value ->> 1),
     (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now"
);

/// After the claims, [`claims`].
const CLAIM_NEW: &str = "
INSERT INTO rowlock_idempotency (scope, idempotency_key, state, attempt, abandoned, max_attempts, attempt_id, holder,
                                 fingerprint, bound, began_at, attempted_at, lease_until, forget_at, clean_at)
SELECT ask.scope, ask.key, 'running', now.us, 1, ask.max_attempts, ask.attempt_id, ask.holder, ask.fingerprint, 0,
       now.us, now.us, now.us + ask.lease + 1000, now.us + ask.remember_begun, now.us + ask.remember_begun
FROM ask, now
WHERE ask.seen IS NULL
ON CONFLICT DO NOTHING
RETURNING scope, idempotency_key, attempt";

const CLAIM_AGAIN: &str = "
UPDATE rowlock_idempotency AS r
SET state = 'running', bound = r.bound OR r.state = 'running', attempt = max(r.attempt + 1, now.us),
    abandoned = iif(r.lease_until > now.us - 3600000000, r.abandoned, 0) + 1,
    max_attempts = ask.max_attempts, attempt_id = ask.attempt_id, holder = ask.holder, fingerprint = ask.fingerprint,
    attempted_at = now.us, lease_until = now.us + ask.lease + 1000, forget_at = now.us + ask.remember_begun,
    clean_at = now.us + ask.remember_begun
FROM ask, now
WHERE r.scope = ask.scope AND r.idempotency_key = ask.key AND r.attempt = ask.seen
  AND (r.state = 'free' OR (r.state = 'running' AND r.open_step IS NULL AND r.lease_until <= now.us))
RETURNING scope, idempotency_key, attempt";

const FORGET: &str = "
DELETE FROM rowlock_idempotency
WHERE scope = ?1 AND idempotency_key = ?2 AND attempt = ?3
  AND forget_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
  AND (state <> 'running' OR (open_step IS NULL
       AND lease_until <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000))";

pub(super) const FORGET_STEPS: &str =
    "DELETE FROM rowlock_idempotency_step WHERE scope = ?1 AND idempotency_key = ?2";

const RENEW: &str = "
UPDATE rowlock_idempotency AS r
SET lease_until = max(r.lease_until, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 + ask.lease + 1000)
FROM (
    SELECT unhex(a.value ->> 0) AS scope, unhex(a.value ->> 1) AS key, unhex(a.value ->> 2) AS attempt_id, a.value ->> 3 AS lease
    FROM json_each(?1) a
) ask
WHERE r.scope = ask.scope AND r.idempotency_key = ask.key AND r.attempt_id = ask.attempt_id AND r.state = 'running'
RETURNING scope, idempotency_key, lease_until - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 - 1000";

/// After the ends, [`ends`].
const FINISH: &str = "
UPDATE rowlock_idempotency AS r
SET state = CASE WHEN ask.step_is_open AND r.open_step IS NOT NULL THEN 'unknown' ELSE ask.state END,
    open_step = CASE WHEN ask.step_is_open THEN r.open_step END,
    bound = r.bound OR ask.bound,
    abandoned = max(r.abandoned - ask.pardon, 0),
    content_type = ask.content_type,
    outcome = ask.outcome,
    done_at = CASE WHEN ask.state = 'done' THEN now.us END,
    retain_until = now.us + ask.retain,
    forget_at = CASE WHEN NOT ask.step_is_open OR r.open_step IS NULL
                     THEN now.us + iif(r.bound OR ask.bound, ask.remember_begun, ask.remember) END,
    clean_at = CASE WHEN NOT ask.step_is_open OR r.open_step IS NULL
                    THEN now.us + COALESCE(ask.retain, iif(r.bound OR ask.bound, ask.remember_begun, ask.remember)) END
FROM ask, now
WHERE r.scope = ask.scope AND r.idempotency_key = ask.key AND r.attempt_id = ask.attempt_id
  AND ask.attempt IN (r.attempt, -1) AND r.state = 'running'
RETURNING scope, idempotency_key, attempt";

/// The clock, as the first table of a WITH. The parameters follow as the table `ask`, and then the statement.
const NOW: &str =
    "WITH now (us) AS (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000), ";

/// [`NOW`], which has no row while the database is in quarantine.
const NOW_UNLESS_QUARANTINED: &str = concat!(
    "WITH now (us) AS (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 WHERE ",
    may_grant!(),
    "), "
);

#[async_trait]
impl RecordStore for SqliteConnection {
    async fn record_read(
        &mut self,
        keys: &[RecordKey],
        largest: usize,
    ) -> Result<Vec<Option<RecordRow>>, Fault> {
        Ok(read(self, keys, largest).await?)
    }

    async fn record_is_claimed(&mut self, _key: &RecordKey) -> Result<bool, Fault> {
        Ok(false)
    }

    async fn record_forget(&mut self, key: &RecordKey, attempt: i64) -> Result<(), Fault> {
        durably(self, async |conn| {
            let (scope, key) = (key.scope(), key.key());
            let forget = sqlx::query(FORGET).bind(scope).bind(key).bind(attempt);
            if forget.execute(&mut *conn).await?.rows_affected() > 0 {
                let steps = sqlx::query(FORGET_STEPS).bind(scope).bind(key);
                steps.execute(conn).await?;
            }
            Ok(())
        })
        .await
    }

    async fn record_claim(&mut self, all: &[ClaimParams]) -> Result<Vec<ClaimOutcome>, Fault> {
        durably(self, async |conn| claimed(conn, all).await).await
    }

    async fn record_renew(&mut self, all: &[KeepParams]) -> Result<Vec<RenewOutcome>, Fault> {
        let _turn = write_turn::turn().await;
        let renewed: Vec<KeyNumber> = sqlx::query_as(RENEW)
            .bind(json::keeps(all))
            .fetch_all(self)
            .await?;
        let outcome = |params: &KeepParams| match number_of(&renewed, &params.key) {
            Some(left) => RenewOutcome::Live {
                remaining: micros(left),
            },
            None => RenewOutcome::Gone,
        };
        Ok(all.iter().map(outcome).collect())
    }

    async fn record_finish(&mut self, all: &[FinishParams]) -> Result<Vec<FinishOutcome>, Fault> {
        durably(self, async |conn| finished(conn, all).await).await
    }

    async fn record_exchange(
        &mut self,
        ends: &[FinishParams],
        claims: &[ClaimParams],
    ) -> Result<(Vec<FinishOutcome>, Vec<ClaimOutcome>), Fault> {
        durably(self, async |conn| {
            let finished = finished(&mut *conn, ends).await?;
            Ok((finished, claimed(conn, claims).await?))
        })
        .await
    }
}

async fn finished(
    conn: &mut SqliteConnection,
    all: &[FinishParams],
) -> Result<Vec<FinishOutcome>, sqlx::Error> {
    let ended = numbers(&mut *conn, ends(all), FINISH).await?;
    let mut finished = Vec::with_capacity(all.len());
    for params in all {
        finished.push(if number_of(&ended, &params.key).is_some() {
            FinishOutcome::Ended
        } else {
            let key = std::slice::from_ref(&params.key);
            let rows = read(conn, key, params.size()).await?;
            params.missed(rows.iter().flatten().next())
        });
    }
    Ok(finished)
}

async fn claimed(
    conn: &mut SqliteConnection,
    all: &[ClaimParams],
) -> Result<Vec<ClaimOutcome>, sqlx::Error> {
    let claimed = claim(conn, all, NOW_UNLESS_QUARANTINED).await?;
    let others = unclaimed(all, &claimed);
    let rows = if others.is_empty() {
        Vec::new()
    } else {
        read(conn, &others, 0).await?
    };
    Ok(claim_outcomes(all, &claimed, &rows))
}

async fn read(
    conn: &mut SqliteConnection,
    keys: &[RecordKey],
    largest: usize,
) -> Result<Vec<Option<RecordRow>>, sqlx::Error> {
    let rows = sqlx::query_as(READ)
        .bind(json::keys(keys))
        .bind(i64::try_from(largest).unwrap_or(i64::MAX))
        .fetch_all(conn)
        .await?;
    Ok(RecordRow::in_order(rows, keys))
}

/// The attempts that have begun in a transaction of the application's, whose commit decides: also in a quarantine.
pub(super) async fn claim_in_tx(
    conn: &mut SqliteConnection,
    params: &ClaimParams,
) -> Result<Vec<KeyNumber>, sqlx::Error> {
    claim(conn, std::slice::from_ref(params), NOW).await
}

/// The attempts that have begun. `now`: the clock.
async fn claim(
    conn: &mut SqliteConnection,
    all: &[ClaimParams],
    now: &'static str,
) -> Result<Vec<KeyNumber>, sqlx::Error> {
    let mut claimed = Vec::new();
    for (sql, is_new) in [(CLAIM_NEW, true), (CLAIM_AGAIN, false)] {
        let asks = all.iter().filter(|params| params.seen.is_none() == is_new);
        let asks: Vec<&ClaimParams> = asks.collect();
        if !asks.is_empty() {
            claimed.extend(numbers(&mut *conn, claims(&asks, now), sql).await?);
        }
    }
    Ok(claimed)
}

/// The claims as a table. (As a JSON text they cost several times as much.)
fn claims(all: &[&ClaimParams], now: &'static str) -> QueryBuilder<Sqlite> {
    let mut sql = QueryBuilder::new(now);
    sql.push(
        "ask (scope, key, seen, max_attempts, attempt_id, holder, fingerprint, lease, remember_begun) AS (",
    );
    sql.push_values(filled_up(all), |mut row, params| {
        row.push_bind(params.map(|params| params.key.scope().to_vec()))
            .push_bind(params.map(|params| params.key.key().to_vec()))
            // (A row of no claim is no new key.)
            .push_bind(params.map_or(Some(0), |params| params.seen))
            .push_bind(params.map(|params| params.max_attempts))
            .push_bind(params.map(|params| params.attempt_id))
            .push_bind(params.map(|params| params.holder.to_string()))
            .push_bind(params.map(|params| params.fingerprint.as_bytes().to_vec()))
            .push_bind(params.map(|params| to_micros(params.lease)))
            .push_bind(params.map(|params| to_micros(params.remember_begun)));
    });
    sql
}

/// The ends as a table.
fn ends(all: &[FinishParams]) -> QueryBuilder<Sqlite> {
    let mut sql = QueryBuilder::new(NOW);
    sql.push(
        "ask (scope, key, attempt_id, attempt, state, content_type, outcome, retain, remember, bound, pardon,
              remember_begun, step_is_open) AS (",
    );
    sql.push_values(filled_up(all), |mut row, params| {
        let end = params.map(|params| EndColumns::from(&params.end));
        let end = end.as_ref();
        let outcome = end.and_then(|end| end.outcome);
        row.push_bind(params.map(|params| params.key.scope().to_vec()))
            .push_bind(params.map(|params| params.key.key().to_vec()))
            .push_bind(params.map(|params| params.attempt_id))
            .push_bind(params.map(|params| params.attempt))
            .push_bind(end.map(|end| end.state))
            .push_bind(outcome.map(|outcome| outcome.content_type().to_owned()))
            .push_bind(outcome.map(|outcome| outcome.bytes().to_vec()))
            .push_bind(end.and_then(|end| end.retain))
            .push_bind(end.map(|end| end.remember))
            .push_bind(end.map(|end| end.bound))
            .push_bind(end.map(|end| end.pardon))
            .push_bind(end.map(|end| end.remember_begun))
            .push_bind(end.map(|end| end.step_is_open));
    });
    sql
}

/// All of them, and rows without one up to a power of two. So there are few texts, and SQLite parses each once. (sqlx
/// keeps 100 prepared statements.)
fn filled_up<T>(all: &[T]) -> impl Iterator<Item = Option<&T>> {
    let none = std::iter::repeat_with(|| None);
    let rows = all.iter().map(Some).chain(none);
    rows.take(all.len().next_power_of_two())
}

/// What a statement returns for its asks.
async fn numbers(
    conn: &mut SqliteConnection,
    mut asks: QueryBuilder<Sqlite>,
    sql: &str,
) -> Result<Vec<KeyNumber>, sqlx::Error> {
    asks.push(")").push(sql);
    asks.build_query_as().fetch_all(conn).await
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
