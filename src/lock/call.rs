//! One call in a caller's transaction: the looks from outside before it, the statements in it, and the meaning of its
//! answers and failures.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use uuid::Uuid;

use crate::lock::locked::Locked;
use crate::model::{Busy, Error, Kind, Moment, Name, Subject, TransactionError};
use crate::runtime::Core;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::held::guard::Guard;
use crate::runtime::requests::take::busy;
use crate::store::driver::capabilities::Capabilities;
use crate::store::verbs::TxStore;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::in_tx::{TxParams, TxReply, TxTaken, TxWaited};
use crate::store::verbs::row::LockRow;
use crate::transaction::{Context, Transaction};

/// The longest time that a caller's transaction waits for a look from outside.
const LOOK: Duration = Duration::from_secs(2);

pub(super) fn conflict(name: &Name) -> Error {
    Error::Conflict {
        what: format!("{name:?} was changed, or has another holder"),
    }
}

pub(super) enum TxLook {
    /// Another holder has a lease, or the name is paused.
    Leased(Busy),
    /// Neither was found. `new`: a row may be newer than the transaction's snapshot.
    Free { new: bool },
}

pub(super) enum Taking {
    Locked(Locked),
    /// Not granted. With the holder, if it is known without another look.
    Missed(Option<Busy>),
    /// Another holder has a lease, or the name is paused, and this transaction has locked its row.
    Blocking,
    /// The database is in quarantine for so long.
    Quarantined(Duration),
}

/// One call in a transaction: the client, the transaction, and the checked names.
pub(super) struct InTransaction<'a, T> {
    core: &'a Arc<Core>,
    tx: &'a mut T,
    names: Vec<Name>,
    context: Context<'a>,
    /// A look from outside got no answer in time, so missing rows cannot be made now.
    starved: Option<Error>,
    /// That look was the release of a lease that lingered in this client: nobody else can free the name.
    lingers: bool,
    /// A look from outside has freed a name, which this transaction could not do.
    pub(super) freed: bool,
    /// The last look could not free a name whose session has expired: a transaction has its row locked. The database
    /// would not let this transaction wait for that row, which does not expire.
    pub(super) orphaned: bool,
}

impl<'a, T: Transaction> InTransaction<'a, T> {
    pub(super) async fn new(
        core: &'a Arc<Core>,
        tx: &'a mut T,
        names: Vec<Name>,
        doing: &'static str,
    ) -> Result<Self, Error> {
        // The request has checked that there is at least one name.
        let context = Context::in_tx(core, Subject::Lock(names[0].clone()), doing, tx)?;
        let mut call = Self {
            core,
            tx,
            names,
            context,
            starved: None,
            lingers: false,
            freed: false,
            orphaned: false,
        };
        if let Err(error @ Error::Starved { .. }) = call.recall().await {
            call.starved = Some(error);
            call.lingers = true;
        }
        Ok(call)
    }

    /// Releases the leases of these names that linger in this client. Returns whether there were any.
    pub(super) async fn recall(&self) -> Result<bool, Error> {
        let recall = |name| self.core.queue.keepers.recall(name);
        let lingered: Vec<_> = self.names.iter().filter_map(recall).collect();
        // This needs another connection. On SQLite this transaction has the file: they are released after it.
        if lingered.is_empty() || self.capabilities().one_writer {
            return Ok(false);
        }
        let released = join_all(lingered.iter().map(Guard::release));
        self.outside(released.map(|_| Ok(true))).await
    }

    pub(super) fn connection(&mut self) -> &mut dyn TxStore {
        self.tx.connection()
    }

    /// Waits a short time for a look over one of rowlock's own connections.
    ///
    /// The transaction keeps its connection meanwhile. Behind a pooler, transactions that wait for such a look may
    /// have all of the server's connections. Then none of them ends before one gives up.
    pub(super) async fn outside<V>(
        &self,
        look: impl Future<Output = Result<V, Error>>,
    ) -> Result<V, Error> {
        // Shorter than the time limit of the look itself, so that this limit ends first.
        let bound = LOOK.min(self.core.holdings.settings.operation_timeout / 2);
        tokio::select! {
            biased;
            seen = look => seen,
            () = sleep_until(Moment::now() + bound) => {
                let starved = || Error::Starved {
                    doing: self.context.doing,
                    on: self.context.on.clone(),
                    target: self.core.lanes.target.to_string(),
                    waited: bound,
                };
                // If the server refuses the login or is down, the pooler is not the cause.
                Err(self.core.lanes.unreachable(self.context.doing).unwrap_or_else(starved))
            }
        }
    }

    /// Has rows that may be missing made before the transaction's next attempt begins.
    fn make_rows_first(&mut self) {
        for name in &self.names {
            if self.core.rows.known(name).is_none() {
                self.tx.make_row_first(self.core, name);
            }
        }
    }

    /// Looks at the rows from outside of the transaction, before the transaction locks anything.
    ///
    /// A look makes a missing row. If the transaction made it, every other maker of that row would wait for the
    /// transaction's end. Where a leased row stays locked, and this client has seen a lease of the name, it looks for
    /// leases first. An engine with one writer needs no look: the open transaction is the writer, and sees all rows.
    pub(super) async fn look_first(&mut self) -> Result<TxLook, Error> {
        let mut new = false;
        let capabilities = self.core.server.capabilities;
        if capabilities.one_writer || self.starved.is_some() {
            return Ok(TxLook::Free { new });
        }
        let blocks = capabilities.leased_rows_stay_locked;
        for name in self.names.clone() {
            let known = self.core.rows.known(&name);
            if known.is_some_and(|known| !(known.leased && blocks)) {
                continue;
            }
            new |= known.is_none();
            let busy = match self.outside(self.core.rows.row(&name)).await {
                Ok(seen) => seen.busy(),
                Err(error @ Error::Starved { .. }) => {
                    self.make_rows_first();
                    if blocks && known.is_none() {
                        return Err(error);
                    }
                    // The row is known, or may exist and a search for it locks nothing (PostgreSQL). Its lease may
                    // have ended: try to lock it.
                    self.starved = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            };
            if let Some(busy) = busy {
                return Ok(TxLook::Leased(busy));
            }
        }
        Ok(TxLook::Free { new })
    }

    /// Fails when a name could not be granted because its row could not be made, or because its lease lingers in this
    /// client: the release needs a connection, which the end of this transaction may give back.
    pub(super) async fn check_starved(&mut self) -> Result<(), Error> {
        match self.starved.clone() {
            Some(error) if self.lingers || !self.sees_all().await? => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the row of the name where it may be missing, as [`look_first`](Self::look_first) does. A timeout is not
    /// yet a failure, because the row may exist. `Ok(Some(error))` is then the error to return if it does not.
    pub(super) async fn ensure_row(&mut self) -> Result<Option<Error>, Error> {
        let name = self.first().clone();
        if self.core.server.capabilities.one_writer || self.core.rows.known(&name).is_some() {
            return Ok(None);
        }
        match self.outside(self.core.rows.row(&name)).await {
            Ok(_) => Ok(None),
            Err(error @ Error::Starved { .. }) => {
                self.make_rows_first();
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn take(&mut self) -> Result<Taking, Error> {
        let all: Vec<TxParams> = self.names.iter().map(|name| self.ask(name, None)).collect();
        let mut taken = self.grant(&all).await?;
        let can_lock_new_rows = self.capabilities().missing_rows_can_be_made;
        if matches!(taken, TxTaken::NoRow) && can_lock_new_rows && self.starved.is_none() {
            // The cleaner has removed a row that this client knew: make it again.
            if let TxLook::Leased(_) = self.look_first().await? {
                return Ok(Taking::Missed(None));
            }
            taken = self.grant(&all).await?;
        }
        match taken {
            TxTaken::Granted { fences, .. } => {
                let grants = self.names.iter().cloned().zip(fences).collect();
                Ok(Taking::Locked(Locked::new(grants)))
            }
            TxTaken::Missed(None) | TxTaken::Early(_) => Ok(Taking::Missed(None)),
            TxTaken::Quarantined(left) => Ok(Taking::Quarantined(left)),
            TxTaken::Missed(Some(row)) => {
                let name = Name::from_bytes(&row.name);
                let name = name.unwrap_or_else(|| self.first().clone());
                let busy = busy(name, Kind::Lock, Some(row))?;
                Ok(Taking::Missed(Some(busy)))
            }
            TxTaken::Again => Err(Error::Transaction(TransactionError::AlreadyLocked {
                name: self.first().clone(),
            })),
            TxTaken::Blocking => Ok(Taking::Blocking),
            // The row could not be made: `check_starved` returns the reason.
            TxTaken::NoRow if self.starved.is_some() => Ok(Taking::Missed(None)),
            TxTaken::NoRow => {
                let detail =
                    "the lock's row was removed, or is newer than the transaction's snapshot";
                Err(self.context.aborted(detail))
            }
        }
    }

    pub(super) fn ask(&self, name: &Name, version: Option<i64>) -> TxParams {
        TxParams {
            name: name.clone(),
            version,
            before: self.core.rows.known(name).and_then(|known| known.granted),
            begun: self.tx.is_begun(),
        }
    }

    /// Tries once to get all names granted.
    pub(super) async fn grant(&mut self, all: &[TxParams]) -> Result<TxTaken, Error> {
        let taken = loop {
            let told = self.tx.connection().tx_take(all).await;
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
                for (params, &fence) in all.iter().zip(fences) {
                    self.core.rows.remember_grant(&params.name, fence);
                    let (core, name) = (Arc::downgrade(self.core), params.name.clone());
                    self.tx.at_end(Box::new(move || {
                        if let Some(core) = core.upgrade() {
                            core.rows.grant_ended(&name, fence);
                        }
                    }));
                }
                for params in all
                    .iter()
                    .filter(|params| perhaps_again.contains(&params.name))
                {
                    self.not_again(params).await?;
                }
            }
            TxTaken::Blocking => all
                .iter()
                .for_each(|params| self.core.rows.saw_lease(&params.name)),
            TxTaken::NoRow => all
                .iter()
                .for_each(|params| self.core.rows.drop_known(&params.name)),
            TxTaken::Again | TxTaken::Missed(_) | TxTaken::Early(_) | TxTaken::Quarantined(_) => {}
        }
        Ok(taken)
    }

    /// Fails if this transaction already holds the name: other sessions do not see that grant, which is not committed.
    async fn not_again(&self, params: &TxParams) -> Result<(), Error> {
        let Some(before) = params.before else {
            return Ok(());
        };
        match self
            .outside(self.core.rows.committed_fence(&params.name))
            .await
        {
            Ok(committed) if committed.is_none_or(|fence| fence < before) => {
                Err(Error::Transaction(TransactionError::AlreadyLocked {
                    name: params.name.clone(),
                }))
            }
            // If the look fails, assume that the grant is committed: locking a name twice does no harm.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    pub(super) async fn wait(&mut self, limit: Option<Duration>) -> Result<TxWaited, Error> {
        let waited = self.tx.connection().tx_wait(&self.names, limit).await;
        waited.map_err(|fault| self.error(fault))
    }

    /// The row of the name, as this transaction sees it.
    pub(super) async fn row(&mut self, name: &Name) -> Result<Option<LockRow>, Error> {
        let told = self.tx.connection().tx_row(name).await;
        self.told(told)
    }

    /// Whether the transaction's snapshot is older than one of the rows.
    pub(super) async fn sees_all(&mut self) -> Result<bool, Error> {
        for name in self.names.clone() {
            if self.row(&name).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.core.server.capabilities
    }

    /// The holder of the name, as other sessions see it. `None` when it cannot be found out in time.
    pub(super) async fn busy(&mut self) -> Result<Busy, Error> {
        self.orphaned = false;
        for name in self.names.clone() {
            let busy = match self.outside(self.core.rows.row(&name)).await {
                Ok(seen) => {
                    self.freed |= seen.reclaimed;
                    self.orphaned |= seen.is_left_behind();
                    seen.busy()
                }
                Err(Error::Starved { .. } | Error::Unreachable { .. }) => break,
                Err(error) => return Err(error),
            };
            if let Some(busy) = busy {
                return Ok(busy);
            }
        }
        Ok(Busy {
            name: self.first().clone(),
            kind: Kind::Lock,
            holder: None,
            waiters: 0,
            quarantine: None,
            pause: None,
        })
    }

    fn first(&self) -> &Name {
        &self.names[0]
    }

    /// The database is in quarantine for this time.
    pub(super) fn quarantined(&self, left: Duration) -> Busy {
        Busy::in_quarantine(self.first().clone(), left)
    }

    pub(super) fn told<F>(&self, told: Result<TxReply<F>, Fault>) -> Result<F, Error> {
        self.context.told(told)
    }

    pub(super) fn check(&self, database: Option<Uuid>) -> Result<(), Error> {
        self.context.check(database)
    }

    /// Waiting here would block the holder's renewal, and its lease would expire; or it would block the end of the
    /// pause.
    pub(super) fn blocking(&self) -> Error {
        let detail = "another holder has a lease, which it cannot renew before this transaction ends, or the name is paused";
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
