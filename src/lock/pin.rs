//! The pin: a lease, proven inside the caller's own transaction.
//!
//! # Overview
//!
//! [`Held::pin`] checks the lease's row in the caller's transaction, by the database's clock, and locks the row there.
//! A takeover finds the row locked until that transaction ends. So the check and the write commit together, which no
//! lock outside of the database can do. Where several servers take writes, a row lock on one server does not exist on
//! the others. There the pin writes the row, and either the transaction commits, or a takeover through another server.
//!
//! # State model
//!
//! ```text
//!   held ── pin ──► pinned ── commit or rollback ──► held, or expired meanwhile
//!    │                         (in between no other holder is granted the name; with several
//!    │                          writing servers: or the commit fails)
//!    └── lost ── pin ──► Error::Lost: roll back
//! ```
//!
//! # Trust window
//!
//! None. When the transaction commits, no other grant was committed since the pin, however long that took, even if the
//! lease ran out meanwhile. A lease is not renewed while it is pinned.
//!
//! # Failure
//!
//! - *The process is paused before the pin*: the pin finds the lease lost.
//! - *The process is paused after the pin*: it keeps the name until the transaction ends. When it wakes, it can
//!   commit. All others wait: limit that in the server (`idle_in_transaction_session_timeout`).
//! - *The process crashes*: the server rolls back; the lease ends with its TTL.
//! - *The connection breaks*: nothing is committed.
//! - *Another server of a cluster grants the name* after the lease ran out (Galera): the transaction cannot commit.

use std::sync::atomic::{Ordering, fence};

use crate::lock::Held;
use crate::lock::call::InTransaction;
use crate::model::{Error, Loss, Moment, Subject};
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::store::verbs::Store;
use crate::store::verbs::in_tx::{PinBy, PinOutcome, PinParams};
use crate::store::verbs::lock_row::RowAction;
use crate::store::verbs::row::LockRow;
use crate::transaction::Transaction;

impl Held {
    /// Proves in `tx`, a transaction of the application's own pool, that this lease is live by the database's
    /// clock, and prevents a takeover until `tx` ends. With several writing servers, a takeover through another server
    /// makes the commit of `tx` fail instead.
    ///
    /// - **Right before the commit** (recommended): the transaction commits its writes only if the lease was held
    ///   throughout. Renewals wait for the shortest time.
    /// - **At the start**, before the first read: no other holder is granted the name while the transaction runs, so
    ///   that its *reads* are protected as well. The lease is not renewed meanwhile. If the transaction outlasts the
    ///   lease, [`is_held`](Self::is_held) turns false and [`lost`](Self::lost) resolves, although no other holder is
    ///   granted the name before the transaction ends.
    ///
    /// In a cluster in which several servers take writes (Galera, group replication with several primaries), a row
    /// lock on one server does not exist on the others. There the pin writes the row: a takeover through another
    /// server does not wait, and then the commit of `tx` fails.
    ///
    /// For a lock [in a session](crate::Lock::in_session), the pin proves that no other holder was granted the name,
    /// and prevents that until `tx` ends, even if the session expires meanwhile.
    ///
    /// Several transactions may pin one lease at the same time. On a Galera cluster each waits for the end of the one
    /// before. Pinning twice in one transaction is harmless. A pin delays only this name, and only the renewal of this
    /// lease; on SQLite a writer locks the whole file. If pins keep the row locked all the time, the lease cannot be
    /// renewed and is lost: pin at the end. Release the lease after the commit, not before: a release waits for the
    /// pin.
    ///
    /// Under REPEATABLE READ and SERIALIZABLE, PostgreSQL cannot lock a row that has changed since the transaction's
    /// snapshot. The same is true of MariaDB with `innodb_snapshot_isolation`. A renewal in between makes a pin at the
    /// end fail with [`Error::Conflict`]. Pin at the start there, or use [`Retry`](crate::Retry).
    ///
    /// Rolling back to a savepoint undoes the pins that were made after it.
    ///
    /// # Errors
    ///
    /// After any error, roll `tx` back.
    ///
    /// - [`Error::Lost`]: the lease is lost. The writes of `tx` must not be committed.
    /// - [`Error::Released`]: this guard was released before.
    /// - [`TransactionError::WrongDatabase`](crate::TransactionError::WrongDatabase): `tx` belongs to another
    ///   database, engine or schema.
    /// - [`Error::Conflict`]: `tx` must begin again.
    /// - [`TransactionError::Over`](crate::TransactionError::Over): `tx` failed or ended before, or its connection
    ///   broke. (The application's own SQL may have ended it: `COMMIT`, `ROLLBACK`, on MySQL and MariaDB also DDL.)
    /// - [`Error::Starved`], [`Error::Unreachable`]: rowlock cannot find out whether the lease is held. `tx` proves
    ///   nothing.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`), when it must wait.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, roll `tx` back.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}/shop.db?mode=rwc", dir.path().display());
    /// # let pool = sqlx::SqlitePool::connect(&url).await?;
    /// # sqlx::raw_sql("CREATE TABLE stock (items INTEGER)").execute(&pool).await?;
    /// # let rowlock = rowlock::Rowlock::from_pool(&pool).await?;
    /// let held = rowlock.lock("stock:42").acquire().await?;
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("UPDATE stock SET items = items - 1").execute(&mut *tx).await?;
    /// held.pin(&mut tx).await?; // an error here drops `tx`, which rolls it back
    /// tx.commit().await?;
    /// drop(held); // releases in the background: after this commit, a loss says nothing of the write
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pin<T: Transaction>(&self, tx: &mut T) -> Result<(), Error> {
        let (core, grant) = (&self.core, self.guard.grant());
        let name = &grant.name;
        let mut here = InTransaction::new(core, tx, vec![name.clone()], "pin").await?;
        let params = PinParams {
            name: name.clone(),
            grant_id: grant.id,
            by: if core.server.multi_writer {
                PinBy::Write
            } else {
                PinBy::Lock
            },
        };
        // Before it is sent: a pin whose future is dropped may still have happened. And before it looks for a release,
        // which looks for pins.
        grant.may_be_pinned.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut backoff = backoff::poll();
        let mut looks_first = self.may_lock_a_gap();
        loop {
            self.guard.check("pin")?;
            if std::mem::take(&mut looks_first) && self.has_no_row(&here).await {
                grant.lose(Loss::TakenOver);
                continue;
            }
            let told = here.connection().tx_pin(&params).await;
            let missed = match here.told(told)? {
                PinOutcome::Live => {
                    grant.pinned();
                    return Ok(());
                }
                missed => missed,
            };
            if let Some(loss) = loss_for_sure(missed, core.server.multi_writer) {
                grant.lose(loss);
                continue;
            }
            // Another holder has the name; or a renewal of this lease has the row locked; or this transaction's
            // server does not know yet of a grant or renewal on another server.
            let head = core
                .lanes
                .look_beside(Subject::Lock(name.clone()), "inspect");
            let inspected = name.clone();
            let look = async move |store: &mut dyn Store| store.lock_inspect(&inspected).await;
            let row = here.outside(core.lanes.run_aside(head, look)).await?;
            let holder = row.map(LockRow::info).transpose()?;
            if holder.is_none_or(|holder| holder.grant_id != grant.id) {
                let expired = missed == PinOutcome::Expired;
                grant.lose(if expired {
                    Loss::Expired
                } else {
                    Loss::TakenOver
                });
            } else if missed == PinOutcome::Invisible {
                return Err(here.invisible());
            } else {
                let pause = backoff.next().unwrap_or_default();
                sleep_until(Moment::now() + pause).await;
            }
        }
    }
}

impl Held {
    /// Whether a pin that finds no row may keep others from making rows. Only the rows of permits go while a client
    /// trusts them: by force, or when a permit that has ended is reclaimed.
    ///
    /// `InnoDB`'s locking read of a missing row locks the gap in which the row would be, under REPEATABLE READ, until
    /// the transaction ends. All permits of the name are in that gap, and names that sort near it. So the first read
    /// is a look from outside, which locks nothing, and sees what the transaction's snapshot may not:
    ///
    /// ```text
    ///   pin                        others
    ///   looks: no row              -                  lost; nothing is locked
    ///   looks: the row             -
    ///   locks the row              cannot reclaim it  pinned
    ///
    ///   looks: the row             -
    ///   -                          reclaim it
    ///   locks the gap: lost        wait for the end of the transaction
    /// ```
    ///
    /// What remains is the last case: the permit goes in that one round trip, while this client trusts it.
    fn may_lock_a_gap(&self) -> bool {
        let server = &self.core.server;
        let capabilities = server.capabilities;
        let locks_gaps = !capabilities.one_writer && !capabilities.missing_rows_can_be_made;
        // One server of several may not know yet of a grant on another.
        locks_gaps && !server.multi_writer && self.guard.grant().name.of_permit().is_some()
    }

    /// Looks from outside. If that fails, the pin itself finds out.
    async fn has_no_row<T: Transaction>(&self, here: &InTransaction<'_, T>) -> bool {
        let lanes = &self.core.lanes;
        let name = self.guard.grant().name.clone();
        let head = lanes.look_beside(Subject::Lock(name.clone()), "inspect");
        let look = async move |store: &mut dyn Store| store.lock_row(&name, RowAction::Look).await;
        let row = here.outside(lanes.run_aside(head, look)).await;
        matches!(row, Ok(None))
    }
}

/// The loss that a failed pin proves. Where several servers take writes it proves none: this server may not know yet
/// of a grant or renewal on another server.
fn loss_for_sure(missed: PinOutcome, multi_writer: bool) -> Option<Loss> {
    match missed {
        PinOutcome::Expired if !multi_writer => Some(Loss::Expired),
        PinOutcome::Gone if !multi_writer => Some(Loss::TakenOver),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_knows_that_a_lease_is_lost_and_one_of_several_does_not() {
        for (missed, loss) in [
            (PinOutcome::Expired, Some(Loss::Expired)),
            (PinOutcome::Gone, Some(Loss::TakenOver)),
            (PinOutcome::Missed, None),
            (PinOutcome::Invisible, None),
        ] {
            assert_eq!(loss_for_sure(missed, false), loss);
            assert_eq!(loss_for_sure(missed, true), None);
        }
    }
}
