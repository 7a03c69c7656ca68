//! What a holder changes in its own lease: the statements.

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::functions::calls;
use super::{query, query_scalar};
use crate::model::Name;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::hold::{HoldOutcome, HoldStore, RaiseParams, RunOutParams};
use crate::store::verbs::time::to_micros;

/// The row `l` has a live grant of the ask. (A session that has ended has no expiry.)
macro_rules! is_live {
    () => {
        "l.name = $1 AND l.grant_id = $2 AND l.expires_at > clock_timestamp()
      AND (l.session_id IS NULL
           OR EXISTS (SELECT FROM rowlock_session s WHERE s.id = l.session_id AND s.expires_at > clock_timestamp()))"
    };
}

const RAISE: &str = concat!(
    "
UPDATE rowlock_lock SET fence = GREATEST(fence + 1, $3)
WHERE name = (SELECT l.name FROM rowlock_lock l WHERE ",
    is_live!(),
    " FOR UPDATE OF l SKIP LOCKED)
RETURNING fence"
);

const RUN_OUT: &str = concat!(
    "
UPDATE rowlock_lock
SET grant_id = $3, expires_at = clock_timestamp() + $4 * interval '1 microsecond', session_id = NULL
WHERE name = (SELECT l.name FROM rowlock_lock l WHERE ",
    is_live!(),
    " FOR UPDATE OF l SKIP LOCKED)
RETURNING waiters > 0"
);

calls! {
    /// The lease ends sooner than the waiters believe. The first one looks at it again.
    TELL = "
SELECT pg_notify('rowlock_' || replace(w.session_id::text, '-', ''), 'look')
FROM rowlock_lock l, LATERAL rowlock_first_waiter(l.name, l.passed, clock_timestamp()) w
WHERE l.name = $1";
}

const LIVE: &str = concat!(
    "SELECT EXISTS (SELECT FROM rowlock_lock l WHERE ",
    is_live!(),
    ")"
);

/// An earlier sending has given the row to this reservation.
const IS_RESERVED: &str =
    "SELECT EXISTS (SELECT FROM rowlock_lock WHERE name = $1 AND grant_id = $2)";

#[async_trait]
impl HoldStore for PgConnection {
    async fn hold_raise(&mut self, params: &RaiseParams) -> Result<HoldOutcome<i64>, Fault> {
        let fence = query_scalar(RAISE)
            .bind(params.name.as_bytes())
            .bind(params.grant_id)
            .bind(params.at_least);
        match fence.fetch_optional(&mut *self).await? {
            Some(fence) => Ok(HoldOutcome::Done(fence)),
            None => missed(self, &params.name, params.grant_id).await,
        }
    }

    async fn hold_run_out(&mut self, params: &RunOutParams) -> Result<HoldOutcome<()>, Fault> {
        let run_out = query_scalar(RUN_OUT)
            .bind(params.name.as_bytes())
            .bind(params.grant_id)
            .bind(params.reservation)
            .bind(to_micros(params.time));
        // Those who wait for a permit wait for the name that it is one of.
        let of = params.name.of_permit();
        let tell = query(&TELL).bind(of.as_ref().unwrap_or(&params.name).as_bytes());
        if let Some(is_awaited) = run_out.fetch_optional(&mut *self).await? {
            if is_awaited || of.is_some() {
                tell.execute(self).await?;
            }
            return Ok(HoldOutcome::Done(()));
        }
        let missed = missed(&mut *self, &params.name, params.grant_id).await?;
        if missed == HoldOutcome::Gone && params.is_reserved() {
            let is_reserved = query_scalar(IS_RESERVED).bind(params.name.as_bytes());
            if is_reserved
                .bind(params.reservation)
                .fetch_one(&mut *self)
                .await?
            {
                // The first sending may have ended before it told.
                tell.execute(self).await?;
                return Ok(HoldOutcome::Done(()));
            }
        }
        Ok(missed)
    }
}

async fn missed<T>(
    conn: &mut PgConnection,
    name: &Name,
    grant_id: Uuid,
) -> Result<HoldOutcome<T>, Fault> {
    let live = query_scalar(LIVE).bind(name.as_bytes());
    let live = live.bind(grant_id).fetch_one(conn).await?;
    Ok(HoldOutcome::missed(live))
}
