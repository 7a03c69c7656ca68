//! Read/write locks and semaphores: the statements.
//!
//! The decisions are [`functions`](super::functions).

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::functions::calls;
use super::lock_row::{make_row, row_ends};
use super::query_as;
use super::queue::{JoinColumns, joined};
use crate::model::{Kind, Name, Share};
use crate::store::verbs::fault::{Fault, unlocked};
use crate::store::verbs::permit::{PermitStore, ResizeOutcome, WeighOutcome, WeighParams};
use crate::store::verbs::queue::{
    EndedGrant, JoinOutcome, JoinParams, LookOutcome, LookParams, PassOutcome, PassParams, WINDOW,
};
use crate::store::verbs::time::to_micros;

calls! {
    JOIN = "SELECT status, number FROM rowlock_permit_join($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    PASS = "SELECT ended, next_grants FROM rowlock_permit_pass($1, $2, $3, $4)";
    WEIGH = "SELECT status, number, next_grants FROM rowlock_permit_weigh($1, $2, $3, $4, $5)";
    RESIZE = "SELECT status, before, next_grants FROM rowlock_permit_resize($1, $2, $3)";

    /// The waiter has a permit; it is there; and the time until the first permit ends, read once for each name. No
    /// time, when the first live waiter fits, or permits were removed by hand. A second, when there is no permit: the
    /// waiter is too heavy for the capacity, which may be raised. Or the time that a pause of the name has left, if
    /// that is longer.
    LOOK = concat!(
    "
WITH ask AS MATERIALIZED (
    SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::bigint[])
        WITH ORDINALITY AS a (name, grant_id, position, n)
    LIMIT cardinality($1)
), names AS MATERIALIZED (
    SELECT k.name, GREATEST(CASE WHEN k.used + (
               SELECT f.weight FROM rowlock_waiter f
               WHERE f.name = k.name AND f.position > k.passed
                 AND (SELECT s.expires_at > clock_timestamp() FROM rowlock_session s WHERE s.id = f.session_id)
               ORDER BY f.position LIMIT 1
           ) <= k.capacity THEN 0 ELSE (
               SELECT CASE WHEN COALESCE(sum(l.weight), 0) < k.used THEN 0 ELSE COALESCE(
                   (extract(epoch FROM min(CASE WHEN l.grant_id IS NULL THEN 'epoch' ELSE ",
    row_ends!(),
    " END) - clock_timestamp()) * 1000000)::bigint, 1000000) END
               FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
               WHERE l.name > k.name || decode('00', 'hex') AND l.name < k.name || decode('01', 'hex')
           ) END, (extract(epoch FROM k.paused_until - clock_timestamp()) * 1000000)::bigint) AS remaining
    FROM (SELECT DISTINCT a.name FROM ask a) a JOIN rowlock_lock k ON k.name = a.name
)
SELECT COALESCE(p.expires_at > clock_timestamp(), false),
       k.name IS NOT NULL AND w.name IS NOT NULL,
       COALESCE(k.remaining, 0)
FROM ask a
LEFT JOIN names k ON k.name = a.name
LEFT JOIN rowlock_lock p
       ON p.name = rowlock_permit_name(a.name, a.grant_id)
      AND p.grant_id = a.grant_id
LEFT JOIN rowlock_waiter w ON w.name = a.name AND w.position = a.position AND w.grant_id = a.grant_id
ORDER BY a.n"
);
}

/// The status, a number, and the grants of the waiters that have permits now.
type Columns = (i32, Option<i64>, Option<Vec<Uuid>>);

#[async_trait]
impl PermitStore for PgConnection {
    async fn permit_join(
        &mut self,
        params: &JoinParams,
        share: Share,
    ) -> Result<Option<JoinOutcome>, Fault> {
        let mut row = unlocked(join(self, params, share).await)?;
        if matches!(row, Some((0, ..))) {
            make_row(self, &params.name, share.kind).await?;
            row = unlocked(join(self, params, share).await)?;
        }
        joined(self, &params.name, row).await
    }

    async fn permit_pass(&mut self, params: &PassParams) -> Result<Option<PassOutcome>, Fault> {
        let (ended, next): (i32, Option<Vec<Uuid>>) = query_as(&PASS)
            .bind(params.name.as_bytes())
            .bind(params.why.grant_id())
            .bind(params.why.position())
            .bind(to_micros(WINDOW))
            .fetch_one(self)
            .await?;
        let next = next.unwrap_or_default();
        Ok(EndedGrant::of(ended.into()).map(|ended| PassOutcome { ended, next }))
    }

    async fn permit_look(&mut self, all: &[LookParams]) -> Result<Vec<LookOutcome>, Fault> {
        Ok(query_as(&LOOK)
            .bind(all.iter().map(|a| a.name.as_bytes()).collect::<Vec<_>>())
            .bind(all.iter().map(|a| a.grant_id).collect::<Vec<_>>())
            .bind(all.iter().map(|a| a.position).collect::<Vec<_>>())
            .fetch_all(self)
            .await?)
    }

    async fn permit_weigh(&mut self, params: &WeighParams) -> Result<Option<WeighOutcome>, Fault> {
        let row: Result<Columns, sqlx::Error> = query_as(&WEIGH)
            .bind(params.name.as_bytes())
            .bind(params.grant_id)
            .bind(params.fence)
            .bind(i64::from(params.weight))
            .bind(to_micros(WINDOW))
            .fetch_one(self)
            .await;
        Ok(unlocked(row)?.map(|row| match row {
            (1, Some(fence), next) => WeighOutcome::Done {
                fence,
                next: next.unwrap_or_default(),
            },
            (2, ..) => WeighOutcome::Full,
            (3, Some(fence), _) => WeighOutcome::Stale(fence),
            _ => WeighOutcome::Gone,
        }))
    }

    async fn permit_resize(
        &mut self,
        name: &Name,
        capacity: u32,
    ) -> Result<Option<ResizeOutcome>, Fault> {
        let kind = Kind::Semaphore { capacity };
        if make_row(self, name, kind).await? {
            let (before, next) = (None, Vec::new());
            return Ok(Some(ResizeOutcome::Done { before, next }));
        }
        let row: Result<Columns, sqlx::Error> = query_as(&RESIZE)
            .bind(name.as_bytes())
            .bind(i64::from(capacity))
            .bind(to_micros(WINDOW))
            .fetch_one(self)
            .await;
        Ok(match unlocked(row)? {
            Some((1, before, next)) => Some(ResizeOutcome::Done {
                before: before.and_then(|before| u32::try_from(before).ok()),
                next: next.unwrap_or_default(),
            }),
            Some((4, Some(before), _)) => Some(ResizeOutcome::Mismatch(Kind::of(before))),
            // Without a row: the cleaner has just removed it.
            _ => None,
        })
    }
}

async fn join(
    conn: &mut PgConnection,
    params: &JoinParams,
    share: Share,
) -> Result<JoinColumns, sqlx::Error> {
    let (status, number) = query_as(&JOIN)
        .bind(params.name.as_bytes())
        .bind(params.grant_id)
        .bind(params.session)
        .bind(params.in_session)
        .bind(to_micros(params.ttl))
        .bind(&*params.holder)
        .bind(i64::from(params.most))
        .bind(i64::from(share.kind.capacity()))
        .bind(i64::from(share.weight))
        .fetch_one(conn)
        .await?;
    Ok((status, number, None))
}
