//! Quarantine: after a database may have forgotten its last commits.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Admin;
use crate::model::Error;
use crate::model::bounds::check_quarantine;
use crate::store::verbs::Store;
use crate::store::verbs::quarantine::{Limit, Quarantine};

impl Admin<'_> {
    /// Puts the database in quarantine: for `time`, 100 ms to 366 days, it grants nothing. A quarantine that already
    /// lasts longer stays as it is. Returns how much longer the database is in quarantine.
    ///
    /// A database may forget its last commits: after a failover to a standby that had not received them, after a crash
    /// with `synchronous_commit = off` or the like, or when it is restored from a backup. A holder may then have a
    /// lease of which the database knows nothing, and the database would grant the name again. Put the database in
    /// quarantine **before clients reach it**, and after the old server takes no more writes, for as long as the
    /// longest of these: the TTL of a lock, three times the [`session_ttl`](crate::Builder::session_ttl), the
    /// [lease](crate::Idempotency::lease) of an attempt, the time of a [`release_in`](crate::Held::release_in), the
    /// `at_least_for` of a job (`rowlock_recipes::Job`). Then every forgotten lease has run out before the next grant.
    /// Fences stay above all earlier ones, unless the new host's clock is behind the old one's by more than the
    /// quarantine.
    ///
    /// - It is in force for every statement that begins after this call has returned, of all clients, old and new. (On
    ///   PostgreSQL, a transaction at REPEATABLE READ or SERIALIZABLE that has read before does not see it: its
    ///   snapshot is older.)
    /// - No lock, permit or [version](crate::InTx::advance) is granted, and no attempt
    ///   [begins](crate::Idempotency::begin). Asking once answers [`Busy`](crate::Busy) or
    ///   [`InFlight`](crate::InFlight), which tell how long the quarantine lasts. Waiting calls wait for its end, in
    ///   their order. A transaction does not wait: the result is [`Error::WaitTimeout`] at once.
    /// - Leases that the database has not forgotten go on: they are renewed, pinned and released. A name that is
    ///   released stays free.
    /// - [`run_in_tx`](crate::Idempotency::run_in_tx) goes on: a forgotten outcome was forgotten together with its
    ///   effect.
    /// - It protects from forgotten *leases*. A forgotten outcome stays forgotten: an effect outside of this database
    ///   whose outcome was lost happens again after the quarantine. Send the
    ///   [`downstream_key`](crate::IdempotencyGuard::downstream_key) with it.
    /// - In a Galera cluster, another node sees it when it has applied the commit. Begin it while the other nodes take
    ///   no clients.
    ///
    /// # Errors
    ///
    /// A time out of bounds, or a database out of reach. On MySQL and MariaDB it waits for transactions that have
    /// locked a name, for at most the [`operation_timeout`](crate::Builder::operation_timeout). Meanwhile it holds up
    /// other calls for half a second at a time at most.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it: the quarantine may begin.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/locks.db", dir.path().display());
    /// use std::time::Duration;
    ///
    /// let rowlock = rowlock::Rowlock::connect(&url).await?;
    /// rowlock.admin().quarantine(Duration::from_secs(60)).await?;
    /// let asked = rowlock.lock("stock:42").wait(Duration::ZERO).acquire().await;
    /// println!("{}", asked.unwrap_err()); // the database is in quarantine for another 60s, …
    /// # assert!(rowlock.admin().end_quarantine().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn quarantine(self, time: Duration) -> Result<Duration, Error> {
        check_quarantine(time)?;
        let head = self.core().lanes.wish(None, "begin the quarantine");
        let mut limit = Limit::new();
        let begin =
            async move |store: &mut dyn Store| store.quarantine_begin(time, limit.next()).await;
        self.core().lanes.run_slow(head, begin).await
    }

    /// Ends the quarantine now, and waits as [`quarantine`](Self::quarantine) does. Returns whether there was one. One
    /// that begins after this call has begun may stay. Call it only when it is certain that no lease was forgotten.
    ///
    /// # Errors
    ///
    /// A database out of reach.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it: the quarantine may end.
    pub async fn end_quarantine(self) -> Result<bool, Error> {
        self.end_quarantine_if(|_| true).await
    }

    /// [`end_quarantine`](Self::end_quarantine) for the one that a person has seen, by its
    /// [end](Self::quarantine_until): one that has begun or was made longer since stays. Returns whether it was still
    /// the one.
    ///
    /// # Errors
    ///
    /// A database out of reach.
    ///
    /// # Cancel safety
    ///
    /// As for [`end_quarantine`](Self::end_quarantine).
    pub async fn end_quarantine_until(self, until: DateTime<Utc>) -> Result<bool, Error> {
        self.end_quarantine_if(|id| id == until.timestamp_micros())
            .await
    }

    async fn end_quarantine_if(self, is_meant: impl Fn(i64) -> bool) -> Result<bool, Error> {
        let seen = self.seen("look for a quarantine to end").await?;
        let Some(quarantine) = seen.filter(|quarantine| is_meant(quarantine.id)) else {
            return Ok(false);
        };
        let head = self.core().lanes.wish(None, "end the quarantine");
        let mut limit = Limit::new();
        let end = async move |store: &mut dyn Store| {
            store.quarantine_end(quarantine.id, limit.next()).await
        };
        self.core().lanes.run_slow(head, end).await?;
        Ok(true)
    }

    /// How much longer the database is in [quarantine](Self::quarantine). `None`: it is not in quarantine.
    ///
    /// # Errors
    ///
    /// A database out of reach.
    pub async fn quarantine_left(self) -> Result<Option<Duration>, Error> {
        let quarantine = self.seen("look for a quarantine").await?;
        Ok(quarantine.map(|quarantine| quarantine.left))
    }

    /// When the [quarantine](Self::quarantine) ends, by the database's clock. No two quarantines have the same end.
    /// `None`: the database is not in quarantine.
    ///
    /// # Errors
    ///
    /// A database out of reach, or an end out of range.
    pub async fn quarantine_until(self) -> Result<Option<DateTime<Utc>>, Error> {
        let quarantine = self.seen("look for a quarantine").await?;
        let until = quarantine.map(|quarantine| {
            let until = DateTime::from_timestamp_micros(quarantine.id);
            until.ok_or_else(|| {
                let what = "the end of the quarantine is out of range";
                Error::damaged("rowlock_database", b"", what)
            })
        });
        until.transpose()
    }

    async fn seen(self, doing: &'static str) -> Result<Option<Quarantine>, Error> {
        let see = async |store: &mut dyn Store| store.quarantine_seen().await;
        self.read(None, doing, see).await
    }
}
