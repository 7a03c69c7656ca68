//! What operators ask of a list, and a page of the answer.

use super::{Error, InvalidError, Kind, LockInfo, Name, PauseInfo, RecordState};

/// A part of a list, in the order of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page<T> {
    /// What it shows. A page may be shorter than its limit, and even empty, and still not be the last one: a call
    /// reads some thousand rows at most.
    pub items: Vec<T>,
    /// Where the next page begins: the `from` of its filter. `None`: this is the last one.
    pub next: Option<String>,
}

/// The names that [`Admin::names`](crate::Admin::names) lists. By default, all names that have a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameFilter {
    pub(crate) prefix: String,
    pub(crate) state: Option<NameState>,
    pub(crate) from: Option<String>,
    pub(crate) limit: Option<u32>,
}

impl NameFilter {
    /// All names, 100 on a page.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only names that begin with `prefix`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Only names in this state.
    #[must_use]
    pub fn state(mut self, state: NameState) -> Self {
        self.state = Some(state);
        self
    }

    /// The page that begins here: the [`next`](Page::next) of the page before, of the same filter.
    #[must_use]
    pub fn from(mut self, next: Option<String>) -> Self {
        self.from = next;
        self
    }

    /// The most names of a page: 1 to 1,000.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// What becomes of a name at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NameState {
    /// It is held, waited for or paused.
    InUse,
    /// It has a holder.
    Held,
    /// It has a waiter.
    Awaited,
    /// It is the name of a lock that has a waiter, has no holder, and is not [paused](crate::Admin::pause). That lasts
    /// for a moment, until a client passes it on; it lasts longer in a quarantine.
    Orphaned,
    /// It is [paused](crate::Admin::pause).
    Paused,
}

/// A name, as its rows in the database describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameInfo {
    /// The name.
    pub name: Name,
    /// What it stands for.
    pub kind: Kind,
    /// The last fence that was granted.
    pub fence: i64,
    /// How many wait for it. (The waiters of a crashed process count until their session has expired and their turn
    /// comes.)
    pub waiters: u32,
    /// Its holders, in the order of their fences. On a page of [`Admin::names`](crate::Admin::names) at most 100 of
    /// them: [`Admin::name`](crate::Admin::name) has all.
    pub holders: Vec<LockInfo>,
    /// Its pause, if it is paused.
    pub pause: Option<PauseInfo>,
}

impl NameInfo {
    /// Whether it was in this state when it was read.
    #[must_use]
    pub fn is(&self, state: NameState) -> bool {
        let (held, awaited) = (!self.holders.is_empty(), self.waiters > 0);
        let paused = self.pause.is_some();
        match state {
            NameState::InUse => held || awaited || paused,
            NameState::Paused => paused,
            NameState::Held => held,
            NameState::Awaited => awaited,
            NameState::Orphaned => awaited && !held && !paused && self.kind == Kind::Lock,
        }
    }
}

/// The idempotency records that [`Idempotency::list`](crate::Idempotency::list) lists: all, unless it is told
/// otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordFilter {
    pub(crate) scope: Option<Vec<u8>>,
    pub(crate) key: Vec<u8>,
    pub(crate) state: Option<RecordState>,
    pub(crate) from: Option<String>,
    pub(crate) limit: Option<u32>,
}

impl RecordFilter {
    /// All records, 100 on a page.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only records of this scope whose keys begin with `key` (empty: all of the scope).
    #[must_use]
    pub fn scope(mut self, scope: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        (self.scope, self.key) = (Some(scope.into()), key.into());
        self
    }

    /// Only records in this state, by the database's clock.
    #[must_use]
    pub fn state(mut self, state: RecordState) -> Self {
        self.state = Some(state);
        self
    }

    /// The page that begins here: the [`next`](Page::next) of the page before, of the same filter.
    #[must_use]
    pub fn from(mut self, next: Option<String>) -> Self {
        self.from = next;
        self
    }

    /// The most records of a page: 1 to 1,000.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// The most entries of a page.
pub(crate) fn check_limit(limit: Option<u32>) -> Result<usize, Error> {
    let limit = limit.unwrap_or(100);
    if (1..=1_000).contains(&limit) {
        return Ok(limit as usize);
    }
    Err(Error::Invalid(InvalidError::Setting {
        setting: "limit",
        reason: "a page has 1 to 1000 entries",
    }))
}

/// A key as text, for the begin of a page.
pub(crate) fn cursor(key: &[u8]) -> String {
    hex::encode(key)
}

/// The key that [`cursor`] has written.
pub(crate) fn key_at(cursor: &str) -> Result<Vec<u8>, Error> {
    let refused = || {
        Error::Invalid(InvalidError::Setting {
            setting: "from",
            reason: "it is not the `next` of another page",
        })
    };
    let key = hex::decode(cursor).ok();
    key.filter(|key| key.len() <= 1_024).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        for key in [&b""[..], b"a\0b", &[0xff; 289]] {
            assert_eq!(key_at(&cursor(key)).unwrap(), key);
        }
        for other in ["a", "+1", "zz", "é", &"00".repeat(2_000)] {
            assert!(key_at(other).is_err(), "{other}");
        }
    }
}
