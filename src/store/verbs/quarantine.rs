//! Quarantine: a database that may have forgotten its last commits grants nothing until every lease that it may have
//! forgotten has run out.
//!
//! `rowlock_database.quarantine_until` has the end. Every statement that grants a lock, a permit, a place in front of
//! the queue or an attempt has the condition that there is no quarantine. It sees the quarantine if that was committed
//! before the statement began. Renewals, releases, pins and confirms go on: they change no holder. A release frees the
//! name but does not pass it on: a name with waiters is orphaned until the end of the quarantine.

use std::time::Duration;

use async_trait::async_trait;

use super::columns::read_columns;
use super::fault::Fault;
use super::time::micros;

/// The verbs for quarantine.
#[async_trait]
pub(crate) trait QuarantineStore: Send {
    /// Puts the database in quarantine for this time, from now on, by its clock. A quarantine that lasts longer stays,
    /// and gets another [id](Quarantine::id). Returns the time that it lasts now. The commit is durable. Where
    /// transactions that have locked a name are in the way, it waits for them for less than `limit` ([`Limit`]), and
    /// then fails.
    async fn quarantine_begin(
        &mut self,
        time: Duration,
        limit: Duration,
    ) -> Result<Duration, Fault>;

    /// Ends this quarantine, and no other one. A second sending changes nothing. `limit`: as for the begin.
    async fn quarantine_end(&mut self, id: i64, limit: Duration) -> Result<(), Fault>;

    /// The quarantine in which the database is now.
    async fn quarantine_seen(&mut self) -> Result<Option<Quarantine>, Fault>;

    /// The time that the quarantine lasts. `None`: there is none.
    async fn quarantine_left(&mut self) -> Result<Option<Duration>, Fault> {
        let quarantine = self.quarantine_seen().await?;
        Ok(quarantine.map(|quarantine| quarantine.left))
    }
}

/// A quarantine that has not run out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quarantine {
    /// Its end by the database's clock, in microseconds: each begin makes another one, so that a late end does not end
    /// a quarantine that has begun since.
    pub(crate) id: i64,
    /// The time that it lasts.
    pub(crate) left: Duration,
}

read_columns! {
    Quarantine: (i64, i64) => |(id, left)| Self {
        id,
        left: micros(left),
    };
}

/// How long a sending may wait for transactions that are in the way. On MySQL and MariaDB a statement that grants
/// waits after it, and keeps renewals waiting on its lane. So each sending waits for a short time only, and lets the
/// others pass before the next one. It waits for longer each time: short transactions that follow each other closely
/// do not keep it out.
#[derive(Debug)]
pub(crate) struct Limit(Duration);

impl Limit {
    const FIRST: Duration = Duration::from_millis(20);

    const LONGEST: Duration = Duration::from_millis(500);

    pub(crate) fn new() -> Self {
        Self(Self::FIRST)
    }

    /// The limit of the next sending.
    pub(crate) fn next(&mut self) -> Duration {
        let limit = self.0;
        self.0 = (limit * 2).min(Self::LONGEST);
        limit
    }
}
