//! The queue of a name: the statements.
//!
//! Joining and passing on are [`functions`](super::functions). Each fails with 55P03 when the row stays locked; then
//! nothing has happened.

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::functions::calls;
use super::listener::channel;
use super::lock_row::{ROW, make_row, one, row_ends};
use super::{query, query_as, query_scalar};
use crate::model::{Kind, Name};
use crate::store::verbs::fault::{Fault, unlocked};
use crate::store::verbs::queue::{
    ConfirmOutcome, ConfirmParams, EndedGrant, JoinOutcome, JoinParams, LookOutcome, LookParams,
    PassOutcome, PassParams, QueueStore, Ticket, WINDOW, with_quarantine,
};
use crate::store::verbs::session::{LeftBehind, SessionStore};
use crate::store::verbs::time::to_micros;

calls! {
    JOIN = "SELECT status, number, is_orphaned FROM rowlock_join($1, $2, $3, $4, $5, $6, $7)";
    PASS = "SELECT ended, next_grant, left_session FROM rowlock_pass($1, $2, $3, $4)";
}

/// A grant in its window has an expiry of `acquired_at` and the window at most. Otherwise this is a second sending,
/// and the expiry never moves back, and the session stays. The first condition sets the limit on waiting for the row,
/// for this transaction. It reads no column, so the server evaluates it before it looks for the row.
const CONFIRM: &str = "
UPDATE rowlock_lock l
SET expires_at = GREATEST(
        clock_timestamp() + $3 * interval '1 microsecond',
        CASE WHEN l.expires_at > l.acquired_at + $6 * interval '1 microsecond' THEN l.expires_at END
    ),
    session_id = CASE WHEN l.expires_at > l.acquired_at + $6 * interval '1 microsecond' THEN l.session_id ELSE $4 END,
    fence = l.fence + block.fences
FROM (
    SELECT CASE WHEN fence <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $5 THEN $5 ELSE 0 END AS fences
    FROM rowlock_lock WHERE name = $1
) block
WHERE (SELECT set_config('lock_timeout', '20', true)) IS NOT NULL
  AND l.name = $1 AND l.grant_id = $2 AND l.expires_at > clock_timestamp()
RETURNING l.fence, block.fences, l.waiters > 0 OR COALESCE(l.paused_until > clock_timestamp(), false)";

/// The waiter's grant is in the row; its waiter is there; and the time that the row's grant has left, or a pause of
/// the name. (GREATEST ignores NULL.)
const LOOK: &str = concat!(
    "
WITH ask AS (
    SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::bigint[])
        WITH ORDINALITY AS a (name, grant_id, position, n)
    LIMIT cardinality($1)
)
SELECT COALESCE(l.grant_id = a.grant_id AND l.expires_at > clock_timestamp(), false),
       l.name IS NOT NULL AND w.name IS NOT NULL,
       COALESCE((extract(epoch FROM GREATEST(",
    row_ends!(),
    ", l.paused_until) - clock_timestamp()) * 1000000)::bigint, 0)
FROM ask a
LEFT JOIN rowlock_lock l ON l.name = a.name
LEFT JOIN rowlock_session s ON s.id = l.session_id
LEFT JOIN rowlock_waiter w ON w.name = a.name AND w.position = a.position AND w.grant_id = a.grant_id
ORDER BY a.n"
);

const AWAITED: &str = "SELECT name FROM rowlock_lock WHERE name = ANY($1)
AND (waiters > 0 OR paused_until > clock_timestamp())";

const TEST: &str = "SELECT pg_notify($1, '')";

/// The status; the fence, the position or the capacity; and whether the name is orphaned.
pub(super) type JoinColumns = (i32, Option<i64>, Option<bool>);

/// What became of the grant, the next grant, and the session that has to end first.
type PassColumns = (i32, Option<Uuid>, Option<Uuid>);

const KNOWS: &str = "
SELECT EXISTS (SELECT FROM rowlock_waiter WHERE name = $1 AND grant_id = $2)
    OR EXISTS (SELECT FROM rowlock_lock WHERE name = $3 AND grant_id = $2)";

#[async_trait]
impl QueueStore for PgConnection {
    async fn queue_join(&mut self, params: &JoinParams) -> Result<Option<JoinOutcome>, Fault> {
        let mut row = unlocked(join(self, params).await)?;
        if matches!(row, Some((0, ..))) {
            make_row(self, &params.name, Kind::Lock).await?;
            row = unlocked(join(self, params).await)?;
        }
        joined(self, &params.name, row).await
    }

    async fn queue_confirm(
        &mut self,
        params: &ConfirmParams,
    ) -> Result<Option<ConfirmOutcome>, Fault> {
        let fences: Result<Option<(i64, i64, bool)>, sqlx::Error> = query_as(CONFIRM)
            .bind(params.name.as_bytes())
            .bind(params.grant_id)
            .bind(to_micros(params.ttl))
            .bind(params.session)
            .bind(params.fences)
            .bind(to_micros(WINDOW))
            .fetch_optional(self)
            .await;
        let confirmed =
            |fences: Option<_>| fences.map_or(ConfirmOutcome::Gone, ConfirmOutcome::held);
        Ok(unlocked(fences)?.map(confirmed))
    }

    async fn queue_pass(&mut self, params: &PassParams) -> Result<Option<PassOutcome>, Fault> {
        let mut row = unlocked(pass(self, params).await)?;
        if let Some((.., Some(session))) = row {
            let name = params.name.clone();
            self.session_reclaim(&[LeftBehind { name, session }])
                .await?;
            row = unlocked(pass(self, params).await)?;
        }
        Ok(row.and_then(|(ended, next, left)| {
            // Still left behind: ending the session has skipped a row that a transaction has locked.
            let ended = EndedGrant::of(ended.into()).filter(|_| left.is_none());
            let next = next.into_iter().collect();
            ended.map(|ended| PassOutcome { ended, next })
        }))
    }

    async fn queue_look(&mut self, all: &[LookParams]) -> Result<Vec<LookOutcome>, Fault> {
        Ok(query_as(LOOK)
            .bind(all.iter().map(|a| a.name.as_bytes()).collect::<Vec<_>>())
            .bind(all.iter().map(|a| a.grant_id).collect::<Vec<_>>())
            .bind(all.iter().map(|a| a.position).collect::<Vec<_>>())
            .fetch_all(self)
            .await?)
    }

    async fn queue_recall_due(&mut self, names: &[Name]) -> Result<Vec<Name>, Fault> {
        let names: Vec<_> = names.iter().map(Name::as_bytes).collect();
        let awaited: Vec<Vec<u8>> = query_scalar(AWAITED).bind(names).fetch_all(self).await?;
        Ok(Name::all_of(&awaited))
    }

    async fn queue_test(&mut self, session: Uuid) -> Result<(), Fault> {
        query(TEST).bind(channel(session)).execute(self).await?;
        Ok(())
    }

    async fn queue_knows(&mut self, ticket: &Ticket) -> Result<bool, Fault> {
        Ok(query_scalar(KNOWS)
            .bind(ticket.name.as_bytes())
            .bind(ticket.grant_id)
            .bind(ticket.row().as_bytes())
            .fetch_one(self)
            .await?)
    }
}

async fn join(conn: &mut PgConnection, params: &JoinParams) -> Result<JoinColumns, sqlx::Error> {
    query_as(&JOIN)
        .bind(params.name.as_bytes())
        .bind(params.grant_id)
        .bind(params.session)
        .bind(params.in_session)
        .bind(to_micros(params.ttl))
        .bind(&*params.holder)
        .bind(i64::from(params.most))
        .fetch_one(conn)
        .await
}

/// The outcome of a join, for a lock or a permit. `None`: the row is locked, or the cleaner has removed it just now.
pub(super) async fn joined(
    conn: &mut PgConnection,
    name: &Name,
    row: Option<JoinColumns>,
) -> Result<Option<JoinOutcome>, Fault> {
    Ok(match row {
        Some((1, Some(fence), _)) => Some(JoinOutcome::Granted { fence }),
        Some((2, Some(position), is_orphaned)) => Some(JoinOutcome::Queued {
            position,
            is_orphaned: is_orphaned.unwrap_or_default(),
        }),
        Some((3, ..)) => {
            let full = one(conn, ROW, name).await?.map(JoinOutcome::Full);
            with_quarantine(conn, full).await?
        }
        Some((4, Some(capacity), _)) => Some(JoinOutcome::Mismatch(Kind::of(capacity))),
        _ => None,
    })
}

async fn pass(conn: &mut PgConnection, params: &PassParams) -> Result<PassColumns, sqlx::Error> {
    query_as(&PASS)
        .bind(params.name.as_bytes())
        .bind(params.why.grant_id())
        .bind(params.why.position())
        .bind(to_micros(WINDOW))
        .fetch_one(conn)
        .await
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
