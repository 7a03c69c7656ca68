//! The rows of locks: the statements that read and make them.

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::grant_rule::{freed, is_unpaused};
use super::{query, query_as};
use crate::model::{Kind, Name};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::TakeOutcome;
use crate::store::verbs::lock_row::{Forgot, LockRowStore, RowAction, end_of};
use crate::store::verbs::row::LockRow;

/// When the lock in a row `l` ends, by its own expiry or with its session `s`.
macro_rules! row_ends {
    () => {
        "CASE WHEN l.session_id IS NULL THEN l.expires_at
              ELSE LEAST(l.expires_at, COALESCE(s.expires_at, 'epoch')) END"
    };
}
pub(super) use row_ends;

/// The columns of a pause in a row `l`.
macro_rules! pause_columns {
    () => {
        "(extract(epoch FROM l.paused_until) * 1000000)::bigint,
              (extract(epoch FROM l.paused_until - clock_timestamp()) * 1000000)::bigint, l.paused_by, l.paused_why"
    };
}
pub(super) use pause_columns;

/// The columns of a lock's row `l`, with its session `s`.
macro_rules! row_columns {
    () => {
        concat!(
            " l.name, l.grant_id, l.fence, l.holder,
              (extract(epoch FROM l.acquired_at) * 1000000)::bigint,
              (extract(epoch FROM ",
            row_ends!(),
            ") * 1000000)::bigint,
              (extract(epoch FROM ",
            row_ends!(),
            " - clock_timestamp()) * 1000000)::bigint,
              l.session_id, l.waiters, l.capacity, l.weight, ",
            $crate::store::postgres::lock_row::pause_columns!()
        )
    };
}
pub(super) use row_columns;

const GRANTS: &str = concat!(
    "
SELECT",
    row_columns!(),
    "
FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name >= $1 AND l.name < $2 AND ",
    row_ends!(),
    " > clock_timestamp() ORDER BY l.name LIMIT $3"
);

pub(super) const ROW: &str = concat!(
    "
SELECT",
    row_columns!(),
    "
FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name = $1"
);

const MAKE_ROW: &str = "
INSERT INTO rowlock_lock (name, fence, capacity)
VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, $2)
ON CONFLICT (name) DO NOTHING";

const FREE_LAPSED: &str = concat!(
    "
UPDATE rowlock_lock
SET ",
    freed!(),
    "
WHERE name = (
    SELECT name FROM rowlock_lock
    WHERE name = $1 AND expires_at <= clock_timestamp()
    FOR UPDATE SKIP LOCKED
)"
);

/// The condition of the cleaner (`clean.rs`), without its age. It is checked on the newest version of the row, which
/// is locked then.
const FORGET: &str = concat!(
    "
DELETE FROM rowlock_lock l
USING (
    SELECT name FROM rowlock_lock
    WHERE name = $1 AND grant_id IS NULL AND expires_at IS NULL AND waiters = 0 AND used = 0
      AND fence < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AND ",
    is_unpaused!(""),
    "
    FOR UPDATE SKIP LOCKED
) f
WHERE l.name = f.name"
);

#[async_trait]
impl LockRowStore for PgConnection {
    async fn lock_grants(&mut self, name: &Name, most: i64) -> Result<Vec<LockRow>, Fault> {
        Ok(query_as(GRANTS)
            .bind(name.as_bytes())
            .bind(end_of(name))
            .bind(most)
            .fetch_all(self)
            .await?)
    }

    async fn lock_forget(&mut self, name: &Name) -> Result<Forgot, Fault> {
        let forget = query(FORGET).bind(name.as_bytes());
        let removed = forget.execute(&mut *self).await?.rows_affected();
        let found = one(self, ROW, name).await?;
        Ok(Forgot::of(removed, found.is_some()))
    }

    async fn lock_row_as_it_is(
        &mut self,
        name: &Name,
        params: RowAction,
    ) -> Result<Option<LockRow>, Fault> {
        let found = one(self, ROW, name).await?;
        if params == RowAction::Look || found.as_ref().is_some_and(|row| !row.has_lapsed()) {
            return Ok(found);
        }
        if found.is_some() {
            query(FREE_LAPSED)
                .bind(name.as_bytes())
                .execute(&mut *self)
                .await?;
        } else {
            make_row(self, name, Kind::Lock).await?;
        }
        Ok(one(self, ROW, name).await?)
    }
}

/// Makes the row of a name, free, unless it is there. Returns whether it was made.
pub(super) async fn make_row(
    conn: &mut PgConnection,
    name: &Name,
    kind: Kind,
) -> Result<bool, sqlx::Error> {
    let make = query(MAKE_ROW).bind(name.as_bytes());
    let made = make.bind(i64::from(kind.capacity())).execute(conn).await?;
    Ok(made.rows_affected() > 0)
}

pub(super) async fn one(
    conn: &mut PgConnection,
    sql: &'static str,
    name: &Name,
) -> Result<Option<LockRow>, sqlx::Error> {
    let row = query_as(sql).bind(name.as_bytes());
    row.fetch_optional(conn).await
}

/// The granted fence, then the row as it was before, where there was one.
pub(super) fn taken(row: &PgRow) -> Result<TakeOutcome, sqlx::Error> {
    Ok(match row.try_get(0)? {
        Some(fence) => TakeOutcome::Granted { fence },
        None => TakeOutcome::busy(LockRow::read(row, 1)?),
    })
}
