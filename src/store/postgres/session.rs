//! A lane's connection: how its verbs are sent, and how old the plans of its statements may become.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::NAMED;
use super::pooler::{BEGIN, Known, Sharing, is_mix_up};
use crate::model::{FaultKind, Name, Outcome, RecordKey};
use crate::store::clean::{CleanStore, CleanedLocks, CleanedRows};
use crate::store::fault::Fault;
use crate::store::form_token::{FormTokenStore, TokenAsk};
use crate::store::in_tx::{InTxStore, PinAsk, Pinned, Told, TxAsk, TxTaken, TxWaited};
use crate::store::lease::{Freed, LeaseStore, ReleaseAsk, RenewAsk, Renewed, TakeAsk, Taken};
use crate::store::migrate::MigrateFault;
use crate::store::record::{
    ClaimAsk, Claimed, FinishAsk, Finished, KeepAsk, RecordRow, RecordStore,
};
use crate::store::record_admin::{DecideAsk, ListAsk, RecordAdminStore};
use crate::store::record_in_tx::RecordInTxStore;
use crate::store::row::LockRow;
use crate::store::schema::{Applied, SchemaStore, Server};
use crate::store::step::{StepAsk, StepBegun, StepRow, StepStore};

/// For migrations, of which no other client's operations wait.
const BEGIN_MIGRATION: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                               SET LOCAL idle_in_transaction_session_timeout = '5s'";

const MIXED_UP: &str = "a pooler mixes the prepared statements of its clients up";

/// A connection of a client's own, and how its verbs are sent.
#[derive(Debug)]
pub(crate) struct Session {
    conn: PgConnection,
    sharing: Sharing,
    /// Each verb runs in a transaction of its own.
    own_transactions: bool,
    known: Known,
    plans: Plans,
}

/// How old the plans of a connection's prepared statements may be.
///
/// The server keeps the plan of a statement until somebody analyzes the table. A plan from when the table had a few rows reads all
/// of it, for each row that is looked up, however many rows there are by now. That shows: so after a slow verb the statements are
/// prepared anew, and the server plans for the table as it is.
#[derive(Debug)]
struct Plans {
    made: Instant,
    /// The time of the quickest verb: what all of them take, for the way to the server.
    quickest: Duration,
    was_slow: bool,
}

/// A verb is slow when it takes longer than this, and longer than so many times the quickest verb of the connection: a
/// server that is far away is not slow.
const SLOW: (Duration, u32) = (Duration::from_millis(10), 4);

/// Plans that are made anew are at least this old: where verbs are slow for another reason, that costs a few round trips in
/// this time.
const OLD_ENOUGH: Duration = Duration::from_secs(5);

impl Plans {
    fn made(now: Instant) -> Self {
        Self {
            made: now,
            quickest: Duration::MAX,
            was_slow: false,
        }
    }

    fn made_anew(&mut self, now: Instant) {
        self.made = now;
        self.was_slow = false;
    }

    /// A verb took so long.
    fn took(&mut self, time: Duration) {
        self.quickest = self.quickest.min(time);
        self.was_slow |= time > SLOW.0 && time / SLOW.1 > self.quickest;
    }

    /// Whether they are to be made anew now.
    fn are_outlived(&self, now: Instant) -> bool {
        self.was_slow && now.duration_since(self.made) >= OLD_ENOUGH
    }
}

impl Session {
    /// `strict`: the default isolation is not the one that the verbs rely on.
    pub(super) fn new(conn: PgConnection, sharing: Sharing, strict: bool, known: &Known) -> Self {
        Self {
            conn,
            sharing,
            own_transactions: strict || sharing == Sharing::Mixed,
            known: known.clone(),
            plans: Plans::made(Instant::now()),
        }
    }

    /// Before a verb: another connection may have found out what this one did not.
    fn check(&self) -> Result<(), Fault> {
        if self.sharing != Sharing::Mixed && self.known.get() == Some(Sharing::Mixed) {
            return Err(Fault::said(FaultKind::Disconnected, MIXED_UP));
        }
        Ok(())
    }

    /// Before a verb: plans that its table may have outlived are made anew.
    async fn plan(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        // A statement without a name is planned whenever it runs.
        if self.sharing != Sharing::Mixed && self.plans.are_outlived(now) {
            self.plans.made_anew(now);
            self.conn.clear_cached_statements().await?;
        }
        Ok(())
    }

    /// After a verb: what only a pooler can do shows that there is one.
    fn settled<T>(&self, done: Result<T, Fault>) -> Result<T, Fault> {
        match done {
            Err(fault) if self.sharing != Sharing::Mixed && is_mix_up(fault.cause.sqlx()) => {
                self.known.set(Sharing::Mixed);
                Err(Fault {
                    kind: FaultKind::Disconnected,
                    ..fault
                })
            }
            done => done,
        }
    }
}

/// Sends verbs as the session has to.
macro_rules! verbs {
    ($($verb:ident($($given:ident: $type:ty),*) -> $ok:ty, $fault:ty;)*) => {$(
        async fn $verb(&mut self, $($given: $type),*) -> Result<$ok, $fault> {
            self.check()?;
            self.plan().await?;
            let began = Instant::now();
            if !self.own_transactions {
                let done = self.conn.$verb($($given),*).await;
                self.plans.took(began.elapsed());
                return self.settled(done);
            }
            let mut tx = self.conn.begin_with(BEGIN).await.map_err(Fault::from)?;
            let named = self.sharing != Sharing::Mixed;
            let done = NAMED.scope(named, tx.$verb($($given),*)).await;
            let ended = if done.is_ok() { tx.commit().await } else { tx.rollback().await };
            ended.map_err(Fault::from)?;
            self.plans.took(began.elapsed());
            self.settled(done)
        }
    )*};
}

impl LeaseStore for Session {
    verbs! {
        lease_take(asks: &[TakeAsk]) -> Vec<Taken>, Fault;
        lease_renew(asks: &[RenewAsk]) -> Vec<Renewed>, Fault;
        lease_release(asks: &[ReleaseAsk]) -> Vec<Freed>, Fault;
        lease_force_release(name: &Name, patience: Duration) -> Option<LockRow>, Fault;
        lock_inspect(name: &Name) -> Option<LockRow>, Fault;
        lock_list() -> Vec<LockRow>, Fault;
        lock_row(name: &Name, make: bool) -> Option<LockRow>, Fault;
    }
}

impl InTxStore for Session {
    verbs! {
        tx_pin(ask: &PinAsk) -> Told<Pinned>, Fault;
        tx_take(asks: &[TxAsk]) -> Told<TxTaken>, Fault;
        tx_wait(names: &[Name], limit: Option<Duration>) -> TxWaited, Fault;
        tx_row(name: &Name) -> Told<Option<LockRow>>, Fault;
    }
}

impl RecordStore for Session {
    verbs! {
        record_read(keys: &[RecordKey], largest: usize) -> Vec<Option<RecordRow>>, Fault;
        record_is_claimed(key: &RecordKey) -> bool, Fault;
        record_forget(key: &RecordKey, attempt: i64) -> (), Fault;
        record_claim(asks: &[ClaimAsk]) -> Vec<Claimed>, Fault;
        record_renew(asks: &[KeepAsk]) -> Vec<Renewed>, Fault;
        record_finish(asks: &[FinishAsk]) -> Vec<Finished>, Fault;
    }
}

impl RecordAdminStore for Session {
    verbs! {
        record_list(filter: &ListAsk) -> Vec<RecordRow>, Fault;
        record_decide(ask: &DecideAsk) -> bool, Fault;
    }
}

impl RecordInTxStore for Session {
    verbs! {
        tx_claim(ask: &ClaimAsk) -> Told<Claimed>, Fault;
        tx_keep(ask: &ClaimAsk, outcome: &Outcome) -> Finished, Fault;
        tx_complete(ask: &FinishAsk) -> Told<Finished>, Fault;
    }
}

impl StepStore for Session {
    verbs! {
        step_begin(ask: &StepAsk) -> StepBegun, Fault;
        step_finish(ask: &StepAsk, outcome: Option<&Outcome>) -> Finished, Fault;
        step_list(key: &RecordKey) -> Vec<StepRow>, Fault;
    }
}

impl FormTokenStore for Session {
    verbs! {
        token_issue(ask: &TokenAsk) -> (), Fault;
        tx_token_issue(ask: &TokenAsk) -> Told<()>, Fault;
        tx_token_consume(ask: &TokenAsk) -> Told<bool>, Fault;
    }
}

impl CleanStore for Session {
    verbs! {
        lock_clean(after: &[u8], limit: u32) -> CleanedLocks, Fault;
        clean(limit: u32) -> CleanedRows, Fault;
    }
}

impl SchemaStore for Session {
    verbs! {
        server() -> Server, Fault;
        schema_history() -> Option<Vec<Applied>>, Fault;
        database_id() -> Uuid, Fault;
    }

    /// In a transaction of the migrations' own, which is the innermost one.
    async fn migrate(&mut self) -> Result<Vec<String>, MigrateFault> {
        if !self.own_transactions {
            return self.conn.migrate().await;
        }
        let mut tx = self.conn.begin_with(BEGIN_MIGRATION).await?;
        let named = self.sharing != Sharing::Mixed;
        let applied = NAMED.scope(named, tx.migrate()).await?;
        tx.commit().await?;
        Ok(applied)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
