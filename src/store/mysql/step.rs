//! Steps of idempotency records: the statements.

use sqlx::{Connection, MySqlConnection};

use crate::idempotency::{Outcome, RecordKey};
use crate::store::record::{Finished, StepAsk, StepBegun, StepColumns, StepLook, StepRow};

const STEP_LOOK: &str = "
SELECT r.owner = ? AND r.attempt = ? AND r.state = 'running', r.doubt, s.content_type, s.outcome
FROM rowlock_idempotency r
LEFT JOIN rowlock_idempotency_step s
       ON s.scope = r.scope AND s.idempotency_key = r.idempotency_key AND s.step = ?
WHERE r.scope = ? AND r.idempotency_key = ?";

const DOUBT: &str = "
UPDATE rowlock_idempotency SET doubt = ?
WHERE scope = ? AND idempotency_key = ? AND owner = ? AND attempt = ? AND state = 'running' AND doubt IS NULL";

const STEP_SETTLED: &str = "
UPDATE rowlock_idempotency
SET doubt = IF(doubt = ?, NULL, doubt), bound = bound OR ?
WHERE scope = ? AND idempotency_key = ? AND owner = ? AND attempt = ? AND state = 'running'";

/// Sent again, it changes nothing.
const STEP_KEEP: &str = "
INSERT INTO rowlock_idempotency_step (scope, idempotency_key, step, attempt, content_type, outcome, done_at)
VALUES (?, ?, ?, ?, ?, ?, SYSDATE(6))
ON DUPLICATE KEY UPDATE step = step";

const STEPS: &str = "
SELECT step, attempt, content_type, outcome, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', done_at)
FROM rowlock_idempotency_step
WHERE scope = ? AND idempotency_key = ?
ORDER BY done_at, step";

pub(super) async fn begin(
    conn: &mut MySqlConnection,
    ask: &StepAsk,
) -> Result<StepBegun, sqlx::Error> {
    let look: Option<StepLook> = sqlx::query_as(STEP_LOOK)
        .bind(ask.owner)
        .bind(ask.attempt)
        .bind(&*ask.step)
        .bind(ask.key.scope())
        .bind(ask.key.key())
        .fetch_optional(&mut *conn)
        .await?;
    if let Some(begun) = ask.seen(look) {
        return Ok(begun);
    }
    let done = sqlx::query(DOUBT)
        .bind(&*ask.step)
        .bind(ask.key.scope())
        .bind(ask.key.key())
        .bind(ask.owner)
        .bind(ask.attempt)
        .execute(conn)
        .await?;
    Ok(match done.rows_affected() {
        0 => StepBegun::Superseded,
        _ => StepBegun::Fresh,
    })
}

pub(super) async fn finish(
    conn: &mut MySqlConnection,
    ask: &StepAsk,
    outcome: Option<&Outcome>,
) -> Result<Finished, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let mine = sqlx::query(STEP_SETTLED)
        .bind(&*ask.step)
        .bind(outcome.is_some())
        .bind(ask.key.scope())
        .bind(ask.key.key())
        .bind(ask.owner)
        .bind(ask.attempt)
        .execute(&mut *tx)
        .await?;
    if mine.rows_affected() == 0 {
        tx.rollback().await?;
        return Ok(Finished::Superseded);
    }
    if let Some(outcome) = outcome {
        keep(&mut tx, &ask.key, &ask.step, ask.attempt, outcome).await?;
    }
    tx.commit().await?;
    Ok(Finished::Ended)
}

pub(super) async fn keep(
    conn: &mut MySqlConnection,
    key: &RecordKey,
    step: &str,
    attempt: i64,
    outcome: &Outcome,
) -> Result<(), sqlx::Error> {
    let keep = sqlx::query(STEP_KEEP)
        .bind(key.scope())
        .bind(key.key())
        .bind(step)
        .bind(attempt)
        .bind(outcome.content_type())
        .bind(outcome.bytes());
    keep.execute(conn).await.map(|_| ())
}

pub(super) async fn list(
    conn: &mut MySqlConnection,
    key: &RecordKey,
) -> Result<Vec<StepRow>, sqlx::Error> {
    let rows: Vec<StepColumns> = sqlx::query_as(STEPS)
        .bind(key.scope())
        .bind(key.key())
        .fetch_all(conn)
        .await?;
    Ok(rows.into_iter().map(StepRow::from).collect())
}
