//! Quarantine: a database that may have forgotten its last commits grants nothing until every lease that it may have forgotten has run out.
//!
//! `rowlock_database.quarantine_until` has the end. Every statement that grants a lock, a permit, a place in front of the queue or an attempt has the condition that
//! there is no quarantine. It sees the quarantine if that was committed before the statement began. Renewals, releases, pins and confirms go on:
//! they change no holder. A release frees the name but does not pass it on: a name with waiters is stuck until the end of the quarantine.

use std::time::Duration;

use async_trait::async_trait;

use super::fault::Fault;

/// The verbs for quarantine.
#[async_trait]
pub(crate) trait QuarantineStore {
    /// Puts the database in quarantine for this time, from now on, by its clock. A quarantine that lasts longer stays. Returns the time that it lasts now. The
    /// commit is durable.
    async fn quarantine_begin(&mut self, time: Duration) -> Result<Duration, Fault>;

    /// Ends the quarantine. Returns whether there was one.
    async fn quarantine_end(&mut self) -> Result<bool, Fault>;

    /// The time that the quarantine lasts. `None`: there is none.
    async fn quarantine_left(&mut self) -> Result<Option<Duration>, Fault>;
}
