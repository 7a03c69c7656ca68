//! One call in a caller's transaction: what is looked at before it, what is asked in it, and what its answers and
//! failures mean.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::lock::Locked;
use crate::model::{Busy, Error, Moment, Name, Subject};
use crate::runtime::Core;
use crate::runtime::timer::sleep_until;
use crate::store::fault::Fault;
use crate::store::in_tx::{Told, TxAsk, TxTaken, TxWaited};
use crate::store::{Capabilities, TxStore};
use crate::transaction::Context;
use crate::transaction::Transaction;

/// How long a look from outside may take at most, while the caller's transaction waits for it.
const LOOK: Duration = Duration::from_secs(2);

pub(super) fn conflict(name: &Name) -> Error {
    Error::Conflict {
        what: format!("{name:?}"),
    }
}

pub(super) enum Looked {
    /// Somebody has a lease.
    Leased(Busy),
    /// Nobody, as far as was looked. `new`: a row may be newer than the transaction's snapshot.
    Free { new: bool },
}

pub(super) enum Taking {
    Locked(Locked),
    /// With the holder, where that is known without another look.
    Missed(Option<Busy>),
    /// Somebody has a lease, and this transaction its row.
    Blocking,
}

/// One call in a transaction: the client, the transaction and the names, checked.
pub(super) struct InTransaction<'a, T> {
    core: &'a Arc<Core>,
    tx: &'a mut T,
    names: Vec<Name>,
    context: Context<'a>,
    /// A look from outside was not answered in time: rows that are new cannot be made now.
    starved: Option<Error>,
}

impl<'a, T: Transaction> InTransaction<'a, T> {
    pub(super) fn new(
        core: &'a Arc<Core>,
        tx: &'a mut T,
        names: Vec<Name>,
        doing: &'static str,
    ) -> Result<Self, Error> {
        // Checked when the request was made: there is at least one.
        let on = Subject::Lock(names[0].clone());
        Ok(Self {
            core,
            tx,
            names,
            context: Context::new(core, on, doing, T::BRAND)?,
            starved: None,
        })
    }

    pub(super) fn connection(&mut self) -> &mut dyn TxStore {
        self.tx.connection()
    }

    /// Waits for a look over a connection of rowlock's own, for a short time only.
    ///
    /// The transaction keeps its connection meanwhile. Behind a pooler all of the server's may be with transactions that
    /// wait for such a look, and then none of them ends before one gives up.
    pub(super) async fn outside<V>(
        &self,
        look: impl Future<Output = Result<V, Error>>,
    ) -> Result<V, Error> {
        // Less than the time that the look has itself, so that it is this one that ends.
        let bound = LOOK.min(self.core.settings.operation_timeout / 2);
        tokio::select! {
            biased;
            seen = look => seen,
            () = sleep_until(Moment::now() + bound) => {
                let starved = || Error::Starved {
                    doing: self.context.doing,
                    on: self.context.on.clone(),
                    target: self.core.target.to_string(),
                    waited: bound,
                };
                // A server that refuses the login, or is not there, is not one whose connections all are taken.
                Err(self.core.unreachable(self.context.doing).unwrap_or_else(starved))
            }
        }
    }

    /// The rows that may be missing are made before the transaction's next attempt begins.
    fn make_rows_first(&mut self) {
        for name in &self.names {
            if self.core.known(name).is_none() {
                self.tx.make_row_first(self.core, name);
            }
        }
    }

    /// Looks at what has to be seen from outside of the transaction, before it locks anything.
    ///
    /// Rows are made outside: inside, everybody else who makes the same one would wait for the transaction's
    /// end. Where a leased row stays locked, leases are looked for first, if this client has seen one of the name. Where
    /// there is one writer, the open transaction is it, and sees everything.
    pub(super) async fn look_first(&mut self) -> Result<Looked, Error> {
        let mut new = false;
        let capabilities = self.core.capabilities;
        if capabilities.one_writer || self.starved.is_some() {
            return Ok(Looked::Free { new });
        }
        let blocks = capabilities.leased_rows_stay_locked;
        for name in self.names.clone() {
            let known = self.core.known(&name);
            if known.is_some_and(|known| !(known.leased && blocks)) {
                continue;
            }
            new |= known.is_none();
            let holder = match self.outside(self.core.row(&name)).await {
                Ok(seen) => seen.holder().cloned(),
                Err(error @ Error::Starved { .. }) => {
                    self.make_rows_first();
                    if blocks && known.is_none() {
                        return Err(error);
                    }
                    // The row is there, or may be, where looking for it locks nothing (PostgreSQL). Nobody may have a
                    // lease of it any more; locking it tells.
                    self.starved = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            };
            if holder.is_some() {
                return Ok(Looked::Leased(Busy { name, holder }));
            }
        }
        Ok(Looked::Free { new })
    }

    /// Fails when a name could not be granted because its row could not be made.
    pub(super) async fn check_starved(&mut self) -> Result<(), Error> {
        match self.starved.clone() {
            Some(error) if !self.sees_all().await? => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the row of the name where it may be missing, as [`look_first`](Self::look_first) does. When that takes too
    /// long, this is no failure yet, because the row may be there all the same. What is returned then is the error to
    /// fail with if it is not.
    pub(super) async fn ensure_row(&mut self) -> Result<Option<Error>, Error> {
        let name = self.first().clone();
        if self.core.capabilities.one_writer || self.core.known(&name).is_some() {
            return Ok(None);
        }
        match self.outside(self.core.row(&name)).await {
            Ok(_) => Ok(None),
            Err(error @ Error::Starved { .. }) => {
                self.make_rows_first();
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn take(&mut self) -> Result<Taking, Error> {
        let asks: Vec<TxAsk> = self.names.iter().map(|name| self.ask(name, None)).collect();
        let mut taken = self.grant(&asks).await?;
        if matches!(taken, TxTaken::NoRow) && self.can_lock_new_rows() {
            // The cleaner has removed one that this client knew: it is made anew.
            if let Looked::Leased(_) = self.look_first().await? {
                return Ok(Taking::Missed(None));
            }
            taken = self.grant(&asks).await?;
        }
        match taken {
            TxTaken::Granted { fences, .. } => {
                let grants = self.names.iter().cloned().zip(fences).collect();
                Ok(Taking::Locked(Locked::new(grants)))
            }
            TxTaken::Missed(None) | TxTaken::Early(_) => Ok(Taking::Missed(None)),
            TxTaken::Missed(Some(row)) => {
                let holder = row.info()?;
                Ok(Taking::Missed(Some(Busy {
                    name: holder.name.clone(),
                    holder: Some(holder),
                })))
            }
            TxTaken::Again => Err(Error::AlreadyLocked {
                name: self.first().clone(),
            }),
            TxTaken::Blocking => Ok(Taking::Blocking),
            // It could not be made: what comes next says why.
            TxTaken::NoRow if self.starved.is_some() => Ok(Taking::Missed(None)),
            TxTaken::NoRow => {
                let detail =
                    "the lock's row was removed, or is newer than the transaction's snapshot";
                Err(self.context.aborted(detail))
            }
        }
    }

    /// Whether a row that is made outside now can be locked in this transaction: not where rowlock's own connection did
    /// not answer before.
    fn can_lock_new_rows(&self) -> bool {
        self.core.capabilities.missing_rows_can_be_made && self.starved.is_none()
    }

    pub(super) fn ask(&self, name: &Name, version: Option<i64>) -> TxAsk {
        TxAsk {
            name: name.clone(),
            version,
            before: self.core.known(name).and_then(|known| known.granted),
        }
    }

    /// One try to be granted everything.
    pub(super) async fn grant(&mut self, asks: &[TxAsk]) -> Result<TxTaken, Error> {
        let taken = loop {
            let told = self.tx.connection().tx_take(asks).await;
            match self.told(told)? {
                TxTaken::Early(pause) => sleep_until(Moment::now() + pause).await,
                taken => break taken,
            }
        };
        match &taken {
            TxTaken::Granted {
                fences,
                perhaps_again,
            } => {
                for (ask, &fence) in asks.iter().zip(fences) {
                    self.core.remember_grant(&ask.name, fence);
                    let (core, name) = (Arc::downgrade(self.core), ask.name.clone());
                    self.tx.at_end(Box::new(move || {
                        if let Some(core) = core.upgrade() {
                            core.grant_ended(&name, fence);
                        }
                    }));
                }
                for ask in asks.iter().filter(|ask| perhaps_again.contains(&ask.name)) {
                    self.not_again(ask).await?;
                }
            }
            TxTaken::Blocking => asks.iter().for_each(|ask| self.core.saw_lease(&ask.name)),
            TxTaken::NoRow => asks.iter().for_each(|ask| self.core.drop_known(&ask.name)),
            TxTaken::Again | TxTaken::Missed(_) | TxTaken::Early(_) => {}
        }
        Ok(taken)
    }

    /// Whether this very transaction was granted the name before: then others do not see that grant.
    async fn not_again(&self, ask: &TxAsk) -> Result<(), Error> {
        let Some(before) = ask.before else {
            return Ok(());
        };
        match self.outside(self.core.committed_fence(&ask.name)).await {
            Ok(committed) if committed.is_none_or(|fence| fence < before) => {
                Err(Error::AlreadyLocked {
                    name: ask.name.clone(),
                })
            }
            // What cannot be looked at is taken for committed: locking twice harms nobody.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    pub(super) async fn wait(&mut self, limit: Option<Duration>) -> Result<TxWaited, Error> {
        let waited = self.tx.connection().tx_wait(&self.names, limit).await;
        waited.map_err(|fault| self.error(fault))
    }

    /// Whether the transaction's snapshot is older than one of the rows.
    pub(super) async fn sees_all(&mut self) -> Result<bool, Error> {
        for name in self.names.clone() {
            let told = self.tx.connection().tx_row(&name).await;
            if self.told(told)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.core.capabilities
    }

    /// Who is in the way, as everybody sees it. When that cannot be found out in time, nobody is named.
    pub(super) async fn busy(&self) -> Result<Busy, Error> {
        for name in &self.names {
            let holder = match self.outside(self.core.row(name)).await {
                Ok(seen) => seen.holder().cloned(),
                Err(Error::Starved { .. } | Error::Unreachable { .. }) => break,
                Err(error) => return Err(error),
            };
            if holder.is_some() {
                let name = name.clone();
                return Ok(Busy { name, holder });
            }
        }
        Ok(Busy {
            name: self.first().clone(),
            holder: None,
        })
    }

    fn first(&self) -> &Name {
        &self.names[0]
    }

    pub(super) fn told<F>(&self, told: Result<Told<F>, Fault>) -> Result<F, Error> {
        self.context.told(told)
    }

    pub(super) fn check(&self, database: Option<Uuid>) -> Result<(), Error> {
        self.context.check(database)
    }

    /// Waiting for a lease that this transaction keeps from being renewed would be to rob it.
    pub(super) fn blocking(&self) -> Error {
        let detail = "somebody has a lease, which cannot be renewed before this transaction ends";
        self.context.aborted(detail)
    }

    pub(super) fn invisible(&self) -> Error {
        let detail = "the lock's row is newer than the transaction's snapshot";
        self.context.aborted(detail)
    }

    pub(super) fn error(&self, fault: Fault) -> Error {
        self.context.error(fault)
    }
}
