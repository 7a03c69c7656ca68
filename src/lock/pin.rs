//! The pin: a lease, proven inside the caller's own transaction.
//!
//! # Overview
//!
//! [`Held::pin`] looks at the lease's row in the caller's transaction, by the database's clock, and locks it
//! there: a takeover finds it locked until that transaction ends. So the check and the write commit together, which no
//! lock outside of the database can do. Where several servers take writes, a lock on one of them is none on the others:
//! the pin writes the row, and of the transaction and a takeover through another server only one commits.
//!
//! # State model
//!
//! ```text
//!   held ── pin ──► pinned ── commit or rollback ──► held, or expired meanwhile
//!    │                         (in between nobody else takes the name over; with several
//!    │                          writing servers: or the commit fails)
//!    └── lost ── pin ──► Error::Lost: roll back
//! ```
//!
//! # Trust window
//!
//! None: when the transaction commits, nobody else's grant has been committed since the pin, however long that was, also
//! when the lease's time ran out meanwhile. Such a lease is not renewed while it is pinned.
//!
//! # Failure
//!
//! - *The process is paused before the pin*: the pin finds the lease lost.
//! - *The process is paused after the pin*: the name stays its own until the transaction ends; when it wakes, it
//!   commits. Everybody else waits: bound that in the server (`idle_in_transaction_session_timeout`).
//! - *The process crashes*: the server rolls back; the lease ends with its TTL.
//! - *The connection breaks*: nothing is committed.
//! - *Another server of a cluster grants the name* (Galera; its lease has run out): the transaction cannot commit.

use crate::lock::Held;
use crate::lock::call::InTransaction;
use crate::model::{Error, Loss, Moment, Subject};
use crate::runtime::backoff;
use crate::runtime::timer::sleep_until;
use crate::store::Store;
use crate::store::in_tx::{PinAsk, PinBy, Pinned};
use crate::store::row::LockRow;
use crate::transaction::Transaction;

impl Held {
    /// Proves in `tx`, a transaction of the application's own pool, that this lease is live by the database's
    /// clock, and keeps others from taking it over until `tx` ends. With several writing servers it makes the commit of
    /// `tx` fail instead, where the lease was taken over through another one.
    ///
    /// - **Right before the commit**: everything that the transaction has written is committed only if the lease
    ///   was held throughout. The shortest time in which a renewal has to wait. Take this one.
    /// - **At the start**, before its first read: nobody is granted the name while the transaction runs, so that
    ///   what it *reads* is the holder's alone as well. The lease is not renewed meanwhile: where the transaction outlasts what is
    ///   left of it, [`is_held`](Self::is_held) turns false and [`lost`](Self::lost) resolves, although the
    ///   name is still nobody else's until the transaction ends.
    ///
    /// In a cluster in which several servers take writes (Galera, group replication with several primaries), what is
    /// locked on one is not locked on the others. There the pin writes the row: a takeover through another server does
    /// not wait, and the commit of `tx` fails then.
    ///
    /// Several transactions may pin one lease at the same time. Pinning twice in one is harmless. Nothing else
    /// is held up: not other names, and not this process's other renewals (but on SQLite whoever writes has the
    /// whole file). Where so many pin one lease, and for so long, that its row is always locked, it is not renewed
    /// and gets lost: pin at the end. Release the lease after the commit, not before: a release waits for the pin.
    ///
    /// Under REPEATABLE READ and SERIALIZABLE, PostgreSQL cannot lock a row that has changed since the
    /// transaction's snapshot (nor can MariaDB with `innodb_snapshot_isolation`): a renewal in between makes pinning
    /// at the end an [`Error::TransactionAborted`].
    /// Pin at the start there, or use [`Retry`](crate::Retry).
    ///
    /// # Errors
    ///
    /// After each of them roll `tx` back.
    ///
    /// - [`Error::Lost`]: it is not held any more. What `tx` has written must not be committed.
    /// - [`Error::Released`]: this guard was released before.
    /// - [`Error::WrongDatabase`]: `tx` belongs to another database, engine or schema.
    /// - [`Error::TransactionAborted`]: the database wants `tx` begun again.
    /// - [`Error::TransactionOver`]: `tx` had failed or ended before, or its connection broke. (SQL of the application's own may have
    ///   ended it: `COMMIT`, `ROLLBACK`, on MySQL and MariaDB also DDL.)
    /// - [`Error::Starved`], [`Error::Unreachable`]: it cannot be told whether the lease is held. `tx` proves nothing.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio's with timers (`enable_time`), when it has to wait.
    ///
    /// # Cancel safety
    ///
    /// After a future that was dropped, roll `tx` back.
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
    /// let _ = held.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pin<T: Transaction>(&self, tx: &mut T) -> Result<(), Error> {
        let (core, grant) = (self.guard.core(), self.guard.grant());
        let name = &grant.name;
        let mut here = InTransaction::new(core, tx, vec![name.clone()], "pin")?;
        let ask = PinAsk {
            name: name.clone(),
            grant_id: grant.id,
            by: if core.multi_writer {
                PinBy::Write
            } else {
                PinBy::Lock
            },
        };
        let mut backoff = backoff::poll();
        loop {
            if self.guard.is_released() {
                return Err(Error::Released {
                    doing: "pin",
                    name: name.clone(),
                });
            }
            if let Some(loss) = grant.loss() {
                let name = name.clone();
                return Err(Error::Lost { name, loss });
            }
            let told = here.connection().tx_pin(&ask).await;
            let missed = match here.told(told)? {
                Pinned::Live => {
                    grant.pinned();
                    return Ok(());
                }
                missed => missed,
            };
            if let Some(loss) = loss_for_sure(missed, core.multi_writer) {
                grant.lose(loss);
                continue;
            }
            // It is somebody else's; or a renewal of our own is just at it; or the server of this transaction
            // does not know yet what another one has granted or renewed.
            let head = core.look_beside(Subject::Lock(name.clone()), "inspect");
            let inspected = name.clone();
            let look = async move |store: &mut dyn Store| store.lock_inspect(&inspected).await;
            let row = here.outside(core.ask_aside(head, look)).await?;
            let holder = row.map(LockRow::info).transpose()?;
            if holder.is_none_or(|holder| holder.grant_id != grant.id) {
                let expired = missed == Pinned::Expired;
                grant.lose(if expired {
                    Loss::Expired
                } else {
                    Loss::TakenOver
                });
            } else if missed == Pinned::Invisible {
                return Err(here.invisible());
            } else {
                let pause = backoff.next().unwrap_or_default();
                sleep_until(Moment::now() + pause).await;
            }
        }
    }
}

/// What a pin that missed proves by itself. Where several servers take writes it proves nothing: this one may not know yet
/// what another one has granted or renewed.
fn loss_for_sure(missed: Pinned, multi_writer: bool) -> Option<Loss> {
    match missed {
        Pinned::Expired if !multi_writer => Some(Loss::Expired),
        Pinned::Gone if !multi_writer => Some(Loss::TakenOver),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_knows_that_a_lease_is_lost_and_one_of_several_does_not() {
        for (missed, loss) in [
            (Pinned::Expired, Some(Loss::Expired)),
            (Pinned::Gone, Some(Loss::TakenOver)),
            (Pinned::Missed, None),
            (Pinned::Invisible, None),
        ] {
            assert_eq!(loss_for_sure(missed, false), loss);
            assert_eq!(loss_for_sure(missed, true), None);
        }
    }
}
