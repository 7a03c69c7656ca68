//! Idempotency records in transactions: the statements.
//!
//! The session is the caller's; see the head of `in_tx.rs`.
//!
//! Only the index shows that another transaction is making the same key, by making this one wait. A locking read with
//! NOWAIT would not wait. But under REPEATABLE READ, the default, it locks the gap in which the key would be, and
//! other transactions could not insert their keys. So the wait is as short as the server allows: none on MariaDB, a
//! second on MySQL.

use async_trait::async_trait;
use sqlx::{MySqlConnection, Row};

use super::in_tx::database;
use super::statement::{NOW, hex, rows, rows_and_changes, text};
use crate::model::{FaultKind, Outcome};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::in_tx::TxReply;
use crate::store::verbs::record::{
    ClaimOutcome, ClaimParams, EndColumns, FinishOutcome, FinishParams,
};
use crate::store::verbs::record_in_tx::RecordInTxStore;
use crate::store::verbs::time::to_micros;

/// The variable has a value only while the wait is short. If an earlier claim was cut off then, its value stays.
const WAIT_SHORTLY: &str = "
SET @rowlock_wait = CAST(COALESCE(@rowlock_wait, @@innodb_lock_wait_timeout) AS UNSIGNED),
    SESSION innodb_lock_wait_timeout = /*!80000 1 */ /*M!100600 0 */";

const WAIT_AS_BEFORE: &str = "
SET SESSION innodb_lock_wait_timeout = CAST(COALESCE(@rowlock_wait, @@innodb_lock_wait_timeout) AS UNSIGNED),
    @rowlock_wait = NULL";

/// No other session sees the row before its transaction commits, so `clean_at` is set at once and its index is written
/// once. (The cleaner may come a little early, and finds that the outcome is retained longer.) In another database it
/// inserts nothing.
fn claim_new_text(params: &ClaimParams) -> String {
    let (scope, key) = (hex(params.key.scope()), hex(params.key.key()));
    let (attempt_id, holder) = (hex(params.attempt_id.as_bytes()), text(&params.holder));
    let (fingerprint, max_attempts) = (hex(params.fingerprint.as_bytes()), params.max_attempts);
    let (retain, remember) = (to_micros(params.retain), to_micros(params.remember));
    let database = hex(params.database.as_bytes());
    format!(
        "INSERT INTO rowlock_idempotency (scope, idempotency_key, state, attempt, abandoned, max_attempts, attempt_id, holder,
                                          fingerprint, bound, began_at, attempted_at, lease_until, retain_until,
                                          forget_at, clean_at)
         SELECT {scope}, {key}, 'running', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {NOW}), 0, {max_attempts},
                {attempt_id}, {holder}, {fingerprint}, TRUE, {NOW}, {NOW}, {NOW},
                {NOW} + INTERVAL {retain} MICROSECOND, {NOW} + INTERVAL {remember} MICROSECOND,
                {NOW} + INTERVAL {retain} MICROSECOND
         FROM rowlock_database WHERE id = {database}"
    )
}

fn claim_again_text(params: &ClaimParams, seen: i64) -> String {
    let (scope, key) = (hex(params.key.scope()), hex(params.key.key()));
    let (attempt_id, holder) = (hex(params.attempt_id.as_bytes()), text(&params.holder));
    let fingerprint = hex(params.fingerprint.as_bytes());
    let (retain, remember) = (to_micros(params.retain), to_micros(params.remember));
    let database = hex(params.database.as_bytes());
    format!(
        "UPDATE rowlock_idempotency
         SET state = 'running',
             attempt = GREATEST(attempt + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {NOW})),
             attempt_id = {attempt_id}, holder = {holder}, fingerprint = {fingerprint}, attempted_at = {NOW},
             lease_until = {NOW}, retain_until = {NOW} + INTERVAL {retain} MICROSECOND,
             forget_at = {NOW} + INTERVAL {remember} MICROSECOND,
             clean_at = {NOW} + INTERVAL {retain} MICROSECOND
         WHERE scope = {scope} AND idempotency_key = {key} AND attempt = {seen}
           AND (state = 'free' OR (state = 'running' AND open_step IS NULL AND lease_until <= {NOW}))
           AND EXISTS (SELECT * FROM rowlock_database WHERE id = {database})"
    )
}

/// Releasing the savepoint of the claim fails when its transaction has ended, even if another one has begun since.
fn keep_text(params: &ClaimParams, outcome: &Outcome) -> String {
    let (scope, key) = (hex(params.key.scope()), hex(params.key.key()));
    let attempt_id = hex(params.attempt_id.as_bytes());
    let (content_type, bytes) = (text(outcome.content_type()), hex(outcome.bytes()));
    let (retain, remember) = (to_micros(params.retain), to_micros(params.remember));
    format!(
        "RELEASE SAVEPOINT rowlock_claim; \
         UPDATE rowlock_idempotency
         SET state = 'done', abandoned = 0, content_type = {content_type}, outcome = {bytes}, done_at = {NOW},
             retain_until = {NOW} + INTERVAL {retain} MICROSECOND,
             forget_at = {NOW} + INTERVAL {remember} MICROSECOND
         WHERE scope = {scope} AND idempotency_key = {key} AND attempt_id = {attempt_id} AND state = 'running'"
    )
}

fn complete_text(params: &FinishParams) -> String {
    let (scope, key) = (hex(params.key.scope()), hex(params.key.key()));
    let (attempt_id, attempt) = (hex(params.attempt_id.as_bytes()), params.attempt);
    let end = EndColumns::from(&params.end);
    let content_type = text(end.outcome.map_or("", Outcome::content_type));
    let outcome = hex(end.outcome.map_or(&[], Outcome::bytes));
    let (retain, remember) = (end.retain.unwrap_or(end.remember), end.remember);
    format!(
        "SAVEPOINT rowlock_here; RELEASE SAVEPOINT rowlock_here; \
         UPDATE rowlock_idempotency
         SET state = 'done', open_step = NULL, abandoned = 0, content_type = {content_type}, outcome = {outcome},
             done_at = {NOW},
             retain_until = {NOW} + INTERVAL {retain} MICROSECOND,
             clean_at = {NOW} + INTERVAL {retain} MICROSECOND,
             forget_at = {NOW} + INTERVAL {remember} MICROSECOND
         WHERE scope = {scope} AND idempotency_key = {key} AND attempt_id = {attempt_id} AND attempt = {attempt}
           AND state = 'running'; \
         SELECT ROW_COUNT(), MAX(id) FROM rowlock_database LIMIT 1 LOCK IN SHARE MODE"
    )
}

/// A node of a cluster that has aborted the transaction answers the next request with that error, and ignores the
/// request. So this request is sent twice: the session goes back to the pool. The error stays, because the transaction
/// is over.
async fn wait_as_before(conn: &mut MySqlConnection) -> Result<(), Fault> {
    let restored = rows(conn, WAIT_AS_BEFORE.into()).await;
    if let Err(fault) = &restored
        && matches!(fault.cause.sqlx(), sqlx::Error::Database(_))
    {
        rows(conn, WAIT_AS_BEFORE.into()).await?;
    }
    restored.map(|_| ())
}

#[async_trait]
impl RecordInTxStore for MySqlConnection {
    async fn tx_claim(&mut self, params: &ClaimParams) -> Result<TxReply<ClaimOutcome>, Fault> {
        let claim = match params.seen {
            Some(seen) => claim_again_text(params, seen),
            None => claim_new_text(params),
        };
        let claim = format!("SAVEPOINT rowlock_claim; {WAIT_SHORTLY}; {claim}; {WAIT_AS_BEFORE}");
        let done = rows_and_changes(self, claim).await;
        let told = |found| TxReply::of(Some(params.database), found);
        match done {
            Ok((_, changed)) if changed > 0 => {
                return Ok(told(ClaimOutcome::Mine { attempt: 0 }));
            }
            Ok(_) => {}
            Err(fault) => {
                // The text stopped before its end. If the connection is gone, so are its session settings.
                if matches!(fault.cause.sqlx(), sqlx::Error::Database(_)) {
                    wait_as_before(self).await?;
                }
                match fault.kind {
                    FaultKind::LockTimeout => return Ok(told(ClaimOutcome::Locked)),
                    FaultKind::Duplicate => {}
                    _ => return Err(fault),
                }
            }
        }
        // The record could not be claimed, or this is another database.
        Ok(TxReply::of(database(self).await?, ClaimOutcome::Missed))
    }

    async fn tx_keep(
        &mut self,
        params: &ClaimParams,
        outcome: &Outcome,
    ) -> Result<TxReply<FinishOutcome>, Fault> {
        let (_, changed) = rows_and_changes(self, keep_text(params, outcome)).await?;
        match changed {
            // The claim was inserted or changed in this transaction, which has been rolled back since.
            0 => Err(Fault::transaction_over()),
            _ => Ok(TxReply::of(Some(params.database), FinishOutcome::Ended)),
        }
    }

    async fn tx_complete(
        &mut self,
        params: &FinishParams,
    ) -> Result<TxReply<FinishOutcome>, Fault> {
        let rows = rows(self, complete_text(params)).await?;
        let Some(row) = rows.first() else {
            return Ok(TxReply::of(None, FinishOutcome::Superseded));
        };
        let found = FinishOutcome::of(row.try_get::<i64, _>(0)? > 0);
        Ok(TxReply::of(row.try_get(1)?, found))
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Connection;

    use super::*;

    /// A connection of an application's, on both servers.
    async fn connections() -> [MySqlConnection; 2] {
        let connect = async |variable| {
            let url = std::env::var(variable);
            let url =
                url.unwrap_or_else(|_| panic!("{variable} has the URL of a server for tests"));
            let mut conn = MySqlConnection::connect(&url).await.unwrap();
            send(&mut conn, "SET SESSION innodb_lock_wait_timeout = 77").await;
            conn
        };
        [
            connect("ROWLOCK_TEST_MARIADB_URL").await,
            connect("ROWLOCK_TEST_MYSQL_URL").await,
        ]
    }

    async fn send(conn: &mut MySqlConnection, sql: &str) {
        rows(conn, sql.into()).await.unwrap();
    }

    async fn lock_wait(conn: &mut MySqlConnection) -> u64 {
        let wait = "SELECT CAST(@@innodb_lock_wait_timeout AS UNSIGNED)";
        let wait = sqlx::query_scalar(wait).fetch_one(conn).await;
        wait.unwrap()
    }

    #[tokio::test]
    async fn a_lock_wait_that_was_not_shortened_stays_as_it_is() {
        for mut conn in connections().await {
            send(&mut conn, WAIT_AS_BEFORE).await;
            assert_eq!(lock_wait(&mut conn).await, 77);
            // Nor does it become what it was before an earlier claim.
            send(&mut conn, WAIT_SHORTLY).await;
            send(&mut conn, WAIT_AS_BEFORE).await;
            send(&mut conn, "SET SESSION innodb_lock_wait_timeout = 78").await;
            send(&mut conn, WAIT_AS_BEFORE).await;
            assert_eq!(lock_wait(&mut conn).await, 78);
        }
    }

    /// An earlier claim was cut off before it restored the lock wait.
    #[tokio::test]
    async fn a_lock_wait_that_is_short_already_is_not_kept() {
        for mut conn in connections().await {
            send(&mut conn, WAIT_SHORTLY).await;
            send(&mut conn, WAIT_SHORTLY).await;
            assert!(lock_wait(&mut conn).await < 2);
            send(&mut conn, WAIT_AS_BEFORE).await;
            assert_eq!(lock_wait(&mut conn).await, 77);
        }
    }
}
