//! A wait for rows in the caller's transaction.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

use super::grant_rule::is_free;
use super::{each, query, query_scalar};
use crate::model::{FaultKind, Moment, Name};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::in_tx::{TxWaited, is_over};
use crate::store::verbs::time::to_micros;

const WAIT: &str = concat!(
    "
SELECT name FROM rowlock_lock
WHERE name = ANY ($1) AND ",
    is_free!(""),
    " AND capacity = 0
ORDER BY name
FOR UPDATE"
);

/// [`tx_wait`](crate::store::verbs::in_tx::InTxStore::tx_wait).
pub(super) async fn wait(
    conn: &mut PgConnection,
    wanted: &[Name],
    limit: Option<Duration>,
) -> Result<TxWaited, Fault> {
    let until = limit.map(|limit| Moment::now() + limit);
    // A limit on the whole statement: lock_timeout starts again for every row, and twice for a row with a queue.
    let limit = limit.map(|limit| (to_micros(limit) / 1_000).clamp(1, i64::from(i32::MAX)));
    let mut begin = String::from("SAVEPOINT rowlock_wait");
    let mut before: Option<String> = None;
    if let Some(limit) = limit {
        let setting = query_scalar("SELECT current_setting('statement_timeout')");
        before = Some(setting.fetch_one(&mut *conn).await?);
        begin = format!("{begin}; SET LOCAL statement_timeout = {limit}");
    }
    sqlx::raw_sql(AssertSqlSafe(begin))
        .execute(&mut *conn)
        .await?;
    let locked = query(WAIT)
        .bind(each(wanted, Name::as_bytes))
        .fetch_all(&mut *conn)
        .await
        .map_err(Fault::from);
    match locked {
        Ok(locked) if locked.len() == wanted.len() => {
            if let Some(before) = before {
                // RELEASE keeps settings, so the caller's own is restored here.
                query("SELECT set_config('statement_timeout', $1, true)")
                    .bind(before)
                    .execute(&mut *conn)
                    .await?;
            }
            sqlx::raw_sql("RELEASE SAVEPOINT rowlock_wait")
                .execute(conn)
                .await?;
            Ok(TxWaited::Locked)
        }
        Ok(_) => {
            // A lease of a name was granted meanwhile: its row may be locked, and the others may be too.
            give_back(conn).await?;
            see(conn).await
        }
        Err(fault) if is_late(fault.kind, until) => {
            give_back(conn).await?;
            Ok(TxWaited::TimedOut)
        }
        Err(fault) => Err(fault),
    }
}

fn is_late(kind: FaultKind, until: Option<Moment>) -> bool {
    match kind {
        FaultKind::Interrupted => is_over(until),
        FaultKind::LockTimeout => until.is_some(),
        _ => false,
    }
}

/// Unlocks all rows that were locked since the savepoint.
async fn give_back(conn: &mut PgConnection) -> Result<(), Fault> {
    sqlx::raw_sql("ROLLBACK TO SAVEPOINT rowlock_wait; RELEASE SAVEPOINT rowlock_wait")
        .execute(conn)
        .await?;
    Ok(())
}

/// Finds out whether another look can show the transaction the change.
async fn see(conn: &mut PgConnection) -> Result<TxWaited, Fault> {
    let isolation: String = query_scalar("SELECT current_setting('transaction_isolation')")
        .fetch_one(conn)
        .await?;
    Ok(match isolation.as_str() {
        "read committed" | "read uncommitted" => TxWaited::Changed,
        _ => TxWaited::Invisible,
    })
}
