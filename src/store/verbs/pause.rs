//! Pauses: from the commit of a pause on, nobody is granted the name until its end.
//!
//! A pause is in the row of the name. Every statement that grants the name has locked that row, or reads it, and has
//! the condition that the name is not paused. Renewals, releases, pins and confirms go on: they change no holder. A
//! release frees the name but does not pass it on: a name with waiters is orphaned after the pause.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{ColumnIndex, Decode, Row, Type};

use super::columns::read_columns;
use super::fault::Fault;
use super::time::{micros, time};
use crate::model::{Error, Name, PauseInfo};

/// The verbs for pauses.
#[async_trait]
pub(crate) trait PauseStore: Send {
    /// Pauses a name. Replaces a pause that it has. Makes a missing row, that of a lock. Returns what is in force. The
    /// commit is durable. Waits for a locked row, for less than `limit`, even when the caller has gone.
    ///
    /// Where the server tells anything, a client that may keep the lease after a release is told.
    async fn pause_begin(
        &mut self,
        params: &PauseParams,
        limit: Duration,
    ) -> Result<PauseRow, Fault>;

    /// Ends the pause of a name. A second sending changes nothing. `limit`: as for the begin.
    async fn pause_end(&mut self, name: &Name, limit: Duration) -> Result<(), Fault>;
}

#[derive(Debug, Clone)]
pub(crate) struct PauseParams {
    pub(crate) name: Name,
    /// `None`: until it is resumed.
    pub(crate) time: Option<Duration>,
    /// Texts for people.
    pub(crate) by: Arc<str>,
    pub(crate) why: Arc<str>,
}

/// The end of a pause that has none, in microseconds: 9999-12-31, the last day that every engine has.
pub(crate) const NO_END: i64 = 253_402_214_400_000_000;

/// A pause in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PauseRow {
    pub(crate) name: Vec<u8>,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) until: i64,
    /// Microseconds, by the database's clock when the row was read.
    pub(crate) left: i64,
    pub(crate) by: String,
    pub(crate) why: String,
}

impl PauseRow {
    /// Reads the columns that every engine selects in this order, from the column `first` on. `None`: there is no
    /// pause, or it is over.
    pub(super) fn read<'r, R: Row>(
        name: &[u8],
        row: &'r R,
        first: usize,
    ) -> Result<Option<Self>, sqlx::Error>
    where
        usize: ColumnIndex<R>,
        String: Decode<'r, R::Database> + Type<R::Database>,
        i64: Decode<'r, R::Database> + Type<R::Database>,
    {
        let left: Option<i64> = row.try_get(first + 1)?;
        let Some(left) = left.filter(|left| *left > 0) else {
            return Ok(None);
        };
        Ok(Some(Self {
            name: name.to_vec(),
            until: row.try_get(first)?,
            left,
            by: row.try_get(first + 2)?,
            why: row.try_get(first + 3)?,
        }))
    }

    /// The pause as callers see it.
    pub(crate) fn info(self) -> Result<PauseInfo, Error> {
        let damaged = |what| Error::damaged("rowlock_lock", &self.name, what);
        let name = Name::from_bytes(&self.name)
            .ok_or_else(|| damaged("its name is not 1 to 255 bytes of UTF-8 without NUL"))?;
        let until =
            time(self.until).ok_or_else(|| damaged("the end of its pause is out of range"))?;
        let ends = self.until < NO_END;
        Ok(PauseInfo {
            name,
            by: self.by,
            why: self.why,
            until: ends.then_some(until),
            remaining: ends.then(|| micros(self.left)),
        })
    }
}

read_columns! {
    PauseRow: (Vec<u8>, i64, i64, String, String) => |(name, until, left, by, why)| Self {
        name,
        until,
        left,
        by,
        why,
    };
}
