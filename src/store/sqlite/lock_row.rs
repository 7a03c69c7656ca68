//! The rows of locks: the statements that read and make them.

use super::grant_rule::{freed, is_unpaused};

use async_trait::async_trait;
use sqlx::SqliteConnection;

use crate::model::{Kind, Name};
use crate::store::driver::{json, write_turn};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lock_row::{Forgot, LockRowStore, RowAction, end_of};
use crate::store::verbs::row::{LockRow, Rows};

/// When the lock in a row `l` ends, by its own expiry or with its session `s`.
macro_rules! row_ends {
    () => {
        "iif(l.session_id IS NULL, l.expires_at, min(l.expires_at, coalesce(s.expires_at, 0)))"
    };
}
pub(super) use row_ends;

/// The columns of a pause in a row `l`. `$less` is what the time left is reported short.
macro_rules! pause_columns {
    ($less:literal) => {
        concat!(
            "l.paused_until, l.paused_until - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000",
            $less,
            ", l.paused_by, l.paused_why"
        )
    };
}
pub(super) use pause_columns;

/// The columns of a lock's row `l`, with its session `s`. `$less` is what the time left is reported short.
macro_rules! row_columns {
    () => {
        row_columns!(" - 1000")
    };
    ($less:literal) => {
        concat!(
            " l.name, l.grant_id, l.fence, l.holder, l.acquired_at, ",
            row_ends!(),
            ", ",
            row_ends!(),
            " - CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000",
            $less,
            ", l.session_id, l.waiters, l.capacity, l.weight, ",
            $crate::store::sqlite::lock_row::pause_columns!($less)
        )
    };
}
pub(super) use row_columns;

const READ: &str = concat!(
    "
SELECT",
    row_columns!(),
    "
FROM json_each(?1) a CROSS JOIN rowlock_lock l ON l.name = unhex(a.value ->> 0)
LEFT JOIN rowlock_session s ON s.id = l.session_id"
);

const MAKE_ROW: &str = "
INSERT INTO rowlock_lock (name, fence, capacity)
VALUES (?1, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000, ?2)
ON CONFLICT (name) DO NOTHING";

const FREE_LAPSED: &str = concat!(
    "
UPDATE rowlock_lock
SET ",
    freed!(),
    "
WHERE name = ?1 AND expires_at <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000"
);

const GRANTS: &str = concat!(
    "
SELECT",
    row_columns!(),
    "
FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name >= ?1 AND l.name < ?2 AND ",
    row_ends!(),
    " > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 ORDER BY l.name LIMIT ?3"
);

/// The condition of the cleaner (`clean.rs`), without its age.
const FORGET: &str = concat!(
    "
DELETE FROM rowlock_lock
WHERE name = ?1 AND grant_id IS NULL AND expires_at IS NULL AND waiters = 0 AND used = 0
  AND fence < CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AND ",
    is_unpaused!()
);

#[async_trait]
impl LockRowStore for SqliteConnection {
    async fn lock_grants(&mut self, name: &Name, most: i64) -> Result<Vec<LockRow>, Fault> {
        Ok(sqlx::query_as(GRANTS)
            .bind(name.as_bytes())
            .bind(end_of(name))
            .bind(most)
            .fetch_all(self)
            .await?)
    }

    async fn lock_forget(&mut self, name: &Name) -> Result<Forgot, Fault> {
        let _turn = write_turn::turn().await;
        let forget = sqlx::query(FORGET).bind(name.as_bytes());
        let removed = forget.execute(&mut *self).await?.rows_affected();
        let found = read(self, std::iter::once(name)).await?;
        Ok(Forgot::of(removed, !found.is_empty()))
    }

    async fn lock_row_as_it_is(
        &mut self,
        name: &Name,
        params: RowAction,
    ) -> Result<Option<LockRow>, Fault> {
        let make = params == RowAction::Make;
        let mut found = read(self, std::iter::once(name)).await?;
        if found.is_empty() && make {
            let _turn = write_turn::turn().await;
            make_row(self, name, Kind::Lock).await?;
            found = read(self, std::iter::once(name)).await?;
        }
        if make && found.values().any(LockRow::has_lapsed) {
            let _turn = write_turn::turn().await;
            sqlx::query(FREE_LAPSED)
                .bind(name.as_bytes())
                .execute(&mut *self)
                .await?;
            found = read(self, std::iter::once(name)).await?;
        }
        Ok(found.remove(name.as_bytes()))
    }
}

/// Makes the row of a name, free, unless it is there.
pub(super) async fn make_row(
    conn: &mut SqliteConnection,
    name: &Name,
    kind: Kind,
) -> Result<(), sqlx::Error> {
    let make = sqlx::query(MAKE_ROW).bind(name.as_bytes());
    make.bind(kind.capacity()).execute(conn).await?;
    Ok(())
}

pub(super) async fn read<'a>(
    conn: &mut SqliteConnection,
    names: impl Iterator<Item = &'a Name>,
) -> Result<Rows, sqlx::Error> {
    let rows = sqlx::query_as(READ).bind(json::names(names));
    let rows: Vec<LockRow> = rows.fetch_all(conn).await?;
    Ok(LockRow::by_name(rows))
}
