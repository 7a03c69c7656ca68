//! The row of a lock, as every engine reads it.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};
use uuid::Uuid;

use super::pause::PauseRow;
use super::session::LeftBehind;
use super::time::{micros, time};
use crate::model::{Error, Kind, LockInfo, Mode, Name, NameInfo};

/// The columns of a row, unchecked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockRow {
    pub(crate) name: Vec<u8>,
    pub(crate) grant_id: Option<Uuid>,
    pub(crate) fence: i64,
    pub(crate) holder: Option<String>,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) acquired_at: Option<i64>,
    /// Microseconds since 1970-01-01 UTC. The lock of a session ends with the session, as far as this statement sees
    /// it: a holder is removed by [`session_reclaim`](super::session::SessionStore::session_reclaim) only.
    pub(crate) expires_at: Option<i64>,
    /// Microseconds, by the database's clock when the row was read.
    pub(crate) remaining: Option<i64>,
    /// The session that the lock belongs to, if it belongs to one.
    pub(crate) session: Option<Uuid>,
    /// How many waiters its queue has. Some of them may not live any more.
    pub(crate) waiters: u32,
    /// What the name stands for; `None`: its capacity is out of range. In the row of a permit: what its lock was when
    /// the permit was granted.
    pub(crate) kind: Option<Kind>,
    /// The weight of a permit; 0 in the row of a name.
    pub(crate) weight: u32,
    /// This look freed the row: a session that had ended had left it behind.
    pub(crate) reclaimed: bool,
    /// How long the database is in quarantine, if that is why a join was refused.
    pub(crate) quarantine: Option<Duration>,
    /// The pause of the name, if one is in force.
    pub(crate) pause: Option<Box<PauseRow>>,
}

impl LockRow {
    /// Reads the columns that every engine selects in this order, from the column `first` on. `None`: the row has no
    /// lock.
    pub(in crate::store) fn read<'r, R: Row>(
        row: &'r R,
        first: usize,
    ) -> Result<Option<Self>, sqlx::Error>
    where
        usize: ColumnIndex<R>,
        Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
        String: Decode<'r, R::Database> + Type<R::Database>,
        Uuid: Decode<'r, R::Database> + Type<R::Database>,
        i64: Decode<'r, R::Database> + Type<R::Database>,
    {
        let name: Option<Vec<u8>> = row.try_get(first)?;
        let Some(name) = name else {
            return Ok(None);
        };
        Ok(Some(Self {
            pause: PauseRow::read(&name, row, first + 11)?.map(Box::new),
            name,
            grant_id: row.try_get(first + 1)?,
            fence: row.try_get(first + 2)?,
            holder: row.try_get(first + 3)?,
            acquired_at: row.try_get(first + 4)?,
            expires_at: row.try_get(first + 5)?,
            remaining: row.try_get(first + 6)?,
            session: row.try_get(first + 7)?,
            waiters: count(row.try_get(first + 8)?),
            kind: Kind::of(row.try_get(first + 9)?),
            weight: count(row.try_get(first + 10)?),
            reclaimed: false,
            quarantine: None,
        }))
    }
}

impl<'r, R: Row> FromRow<'r, R> for LockRow
where
    usize: ColumnIndex<R>,
    Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    Uuid: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
        Self::read(row, 0)?.ok_or(sqlx::Error::RowNotFound)
    }
}

/// A number from the database: of waiters, or a weight.
pub(in crate::store) fn count(waiters: i64) -> u32 {
    u32::try_from(waiters.max(0)).unwrap_or(u32::MAX)
}

/// Rows by their names.
pub(in crate::store) type Rows = HashMap<Vec<u8>, LockRow>;

impl LockRow {
    pub(in crate::store) fn by_name(rows: Vec<Self>) -> Rows {
        let named = rows.into_iter().map(|row| (row.name.clone(), row));
        named.collect()
    }

    pub(crate) fn is_live(&self) -> bool {
        self.remaining.is_some_and(|left| left > 0)
    }

    /// Whether the row has the lease of this grant, live or expired.
    pub(crate) fn is_of(&self, grant_id: Uuid) -> bool {
        self.grant_id == Some(grant_id)
    }

    /// Whether the row has an expired lease.
    pub(crate) fn has_lapsed(&self) -> bool {
        self.grant_id.is_some() && !self.is_live()
    }

    /// Whether the name has waiters, no live grant and no pause: it has to be passed on.
    pub(crate) fn is_orphaned(&self) -> bool {
        !self.is_live() && self.waiters > 0 && self.kind == Some(Kind::Lock) && self.pause.is_none()
    }

    /// The lock that a session has left behind: the session is not live, as far as the statement saw it.
    pub(in crate::store) fn left_behind(&self) -> Option<LeftBehind> {
        let session = self.session.filter(|_| !self.is_live())?;
        let name = Name::from_bytes(&self.name)?;
        Some(LeftBehind { name, session })
    }

    /// Fails if the name is of another kind than was asked for.
    pub(crate) fn check_kind(&self, asked: Kind) -> Result<(), Error> {
        if self.kind == Some(asked) {
            return Ok(());
        }
        Err(wrong_kind(self.name()?, self.kind, asked))
    }

    fn name(&self) -> Result<Name, Error> {
        let damaged = || self.damaged("its name is not 1 to 255 bytes of UTF-8 without NUL");
        Name::from_bytes(&self.name).ok_or_else(damaged)
    }

    /// The grant in the row, live or expired.
    pub(crate) fn grant(self) -> Result<Option<LockInfo>, Error> {
        let is_granted = self.grant_id.is_some() || self.expires_at.is_some();
        is_granted.then(|| self.info()).transpose()
    }

    /// The row as callers see it.
    pub(crate) fn info(self) -> Result<LockInfo, Error> {
        let name = self.name()?;
        let Some(grant_id) = self.grant_id else {
            return Err(self.damaged("it has an expiry but no grant id"));
        };
        let (Some(acquired_at), Some(expires_at)) = (
            self.acquired_at.and_then(time),
            self.expires_at.and_then(time),
        ) else {
            return Err(self.damaged("a time in it is missing or out of range"));
        };
        let Some(kind) = self.kind else {
            return Err(self.damaged(NO_CAPACITY));
        };
        Ok(LockInfo {
            name: name.of_permit().unwrap_or(name),
            grant_id,
            fence: self.fence,
            holder: self.holder.unwrap_or_default(),
            acquired_at,
            expires_at,
            remaining: micros(self.remaining.unwrap_or(0)),
            session: self.session,
            mode: Mode::of(kind, self.weight),
        })
    }

    /// The name that the row stands for, without its holders.
    pub(crate) fn name_info(&self) -> Result<NameInfo, Error> {
        Ok(NameInfo {
            name: self.name()?,
            kind: self.kind.ok_or_else(|| self.damaged(NO_CAPACITY))?,
            fence: self.fence,
            waiters: self.waiters,
            holders: Vec::new(),
            pause: self.pause.clone().map(|pause| pause.info()).transpose()?,
        })
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::damaged("rowlock_lock", &self.name, what)
    }
}

const NO_CAPACITY: &str = "its capacity is out of range";

/// A name is of the kind `is`, and not of the asked one. `None`: its capacity is out of range.
pub(crate) fn wrong_kind(name: Name, is: Option<Kind>, asked: Kind) -> Error {
    match is {
        Some(is) => Error::WrongKind { name, is, asked },
        None => Error::damaged("rowlock_lock", name.as_bytes(), NO_CAPACITY),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::SchemaError;

    fn row() -> LockRow {
        LockRow {
            name: b"a".to_vec(),
            grant_id: Some(Uuid::nil()),
            fence: 1,
            holder: Some("me".into()),
            acquired_at: Some(1),
            expires_at: Some(2),
            remaining: Some(-5),
            session: None,
            waiters: 0,
            kind: Some(Kind::Lock),
            weight: 0,
            reclaimed: false,
            quarantine: None,
            pause: None,
        }
    }

    #[test]
    fn a_row_that_makes_sense_is_shown() {
        let info = row().info().unwrap();
        assert_eq!((info.fence, info.remaining), (1, Duration::ZERO));
    }

    #[test]
    fn a_row_edited_by_hand_is_an_error() {
        let damages: [fn(&mut LockRow); 5] = [
            |r| r.name = vec![0xff],
            |r| r.grant_id = None,
            |r| r.acquired_at = Some(i64::MAX),
            |r| r.expires_at = None,
            |r| r.kind = None,
        ];
        for damage in damages {
            let mut row = row();
            damage(&mut row);
            assert!(matches!(
                row.info(),
                Err(Error::Schema(SchemaError::Corrupt { .. }))
            ));
        }
    }

    #[test]
    fn a_capacity_out_of_range_is_no_other_kind() {
        let damaged = LockRow {
            kind: None,
            waiters: 1,
            ..row()
        };
        let error = damaged.check_kind(Kind::Lock);
        assert!(
            matches!(error, Err(Error::Schema(SchemaError::Corrupt { .. }))),
            "{error:?}"
        );
        assert!(!damaged.is_orphaned());
        let other = row().check_kind(Kind::ReadWrite);
        assert!(matches!(other, Err(Error::WrongKind { .. })), "{other:?}");
    }
}
