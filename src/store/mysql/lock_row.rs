//! The rows of locks: the statements that read and make them.

use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use sqlx::{Connection, FromRow, MySqlConnection};

use super::grant_rule::freed;
use super::statement::{fill, hex, read_as};
use crate::model::{FaultKind, Kind, Name};
use crate::store::driver::classify::classify;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lock_row::{Forgot, LockRowStore, RowAction, end_of};
use crate::store::verbs::row::{LockRow, Rows};

/// When the lock in a row `l` ends, by its own expiry or with its session `s`.
macro_rules! row_ends {
    () => {
        "IF(l.session_id IS NULL, l.expires_at,
            LEAST(l.expires_at, COALESCE(s.expires_at, '1970-01-02')))"
    };
}
pub(super) use row_ends;

/// The columns of a pause in a row `l`, when it is `$now`.
macro_rules! pause_columns {
    ($now:expr) => {
        concat!(
            "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.paused_until),
              TIMESTAMPDIFF(MICROSECOND, ",
            $now,
            ", l.paused_until), l.paused_by, l.paused_why"
        )
    };
}
pub(super) use pause_columns;

/// The columns of a lock's row `l`, with its session `s`, when it is `$now`.
macro_rules! row_columns {
    ($now:expr) => {
        concat!(
            " l.name, l.grant_id, l.fence, l.holder,
              TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.acquired_at),
              TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ",
            row_ends!(),
            "),
              TIMESTAMPDIFF(MICROSECOND, ",
            $now,
            ", ",
            row_ends!(),
            "),
              l.session_id, l.waiters, l.capacity, l.weight, ",
            $crate::store::mysql::lock_row::pause_columns!($now)
        )
    };
}
pub(super) use row_columns;

const READ: &str = concat!(
    "
SELECT",
    row_columns!("SYSDATE(6)"),
    "
FROM rowlock_lock l FORCE INDEX (PRIMARY) LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name IN (?)"
);

const FREE_LAPSED: &str = concat!(
    "
UPDATE (
    SELECT f.name FROM rowlock_lock f FORCE INDEX (PRIMARY)
    WHERE f.name = ? AND f.expires_at <= SYSDATE(6)
    LIMIT 1
    FOR UPDATE SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name
SET ",
    freed!("l.")
);

/// The error for a duplicate is caught.
const MAKE_ROW: &str = "
INSERT INTO rowlock_lock (name, fence, capacity)
VALUES (?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), ?)";

const GRANTS: &str = concat!(
    "
SELECT",
    row_columns!("SYSDATE(6)"),
    "
FROM rowlock_lock l FORCE INDEX (PRIMARY) LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name >= ? AND l.name < ? AND ",
    row_ends!(),
    " > SYSDATE(6) ORDER BY l.name LIMIT ?"
);

/// Locks the row if it may be forgotten: the condition of the cleaner (`clean.rs`), without its age.
const UNUSED: &str = "
SELECT name FROM rowlock_lock FORCE INDEX (PRIMARY)
WHERE name = ? AND grant_id IS NULL AND expires_at IS NULL AND waiters = 0 AND used = 0
  AND fence < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
  AND (paused_until IS NULL OR paused_until <= SYSDATE(6))
FOR UPDATE SKIP LOCKED";

const FORGET: &str = "DELETE l FROM rowlock_lock l WHERE l.name = ?";

#[async_trait]
impl LockRowStore for MySqlConnection {
    async fn lock_grants(&mut self, name: &Name, most: i64) -> Result<Vec<LockRow>, Fault> {
        let filled = [hex(name.as_bytes()), hex(&end_of(name)), most.to_string()];
        Ok(read_as(self, &fill(GRANTS, &filled)).await?)
    }

    async fn lock_forget(&mut self, name: &Name) -> Result<Forgot, Fault> {
        let mut tx = self.begin().await?;
        let unused = sqlx::query(UNUSED).bind(name.as_bytes());
        let mut removed = 0;
        if unused.fetch_optional(&mut *tx).await?.is_some() {
            let forget = sqlx::query(FORGET).bind(name.as_bytes());
            removed = forget.execute(&mut *tx).await?.rows_affected();
        }
        tx.commit().await?;
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
            make_row(self, name, Kind::Lock).await?;
            found = read(self, std::iter::once(name)).await?;
        }
        if make && found.values().any(LockRow::has_lapsed) {
            sqlx::query(FREE_LAPSED)
                .bind(name.as_bytes())
                .execute(&mut *self)
                .await?;
            found = read(self, std::iter::once(name)).await?;
        }
        Ok(found.remove(name.as_bytes()))
    }
}

/// Makes a row that is missing: free, with the clock as its fence. Returns whether it was missing.
pub(super) async fn make_row(
    conn: &mut MySqlConnection,
    name: &Name,
    kind: Kind,
) -> Result<bool, sqlx::Error> {
    let make = sqlx::query(MAKE_ROW)
        .bind(name.as_bytes())
        .bind(kind.capacity());
    match make.execute(conn).await {
        Err(error) if is_duplicate(&error) => Ok(false),
        other => other.map(|_| true),
    }
}

pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    classify(error) == FaultKind::Duplicate
}

pub(super) async fn read<'a>(
    conn: &mut MySqlConnection,
    names: impl Iterator<Item = &'a Name> + Clone,
) -> Result<Rows, sqlx::Error> {
    Ok(LockRow::by_name(read_as(conn, &read_text(names)).await?))
}

pub(super) fn read_text<'a>(all: impl Iterator<Item = &'a Name> + Clone) -> String {
    read_named(&names(all))
}

/// [`read_text`] for [`names`].
pub(super) fn read_named(names: &str) -> String {
    fill(READ, &[names.to_owned()])
}

/// A list of literals for `IN (…)`. Plain text is half as long as hexadecimal. `IN ()` is an error, so an empty list
/// is NULL, which equals no name.
pub(super) fn names<'a>(names: impl Iterator<Item = &'a Name> + Clone) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/ ".contains(byte);
    let are_plain = names
        .clone()
        .all(|name| name.as_bytes().iter().all(is_plain));
    let literals = names.map(|name| {
        if are_plain {
            format!("'{}'", name.as_str())
        } else {
            hex(name.as_bytes())
        }
    });
    let literals: Vec<String> = literals.collect();
    if literals.is_empty() {
        return "NULL".into();
    }
    literals.join(",")
}

pub(super) fn found(rows: &[MySqlRow]) -> Result<Rows, sqlx::Error> {
    let rows: Result<_, sqlx::Error> = rows.iter().map(LockRow::from_row).collect();
    Ok(LockRow::by_name(rows?))
}
