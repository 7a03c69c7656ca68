//! A lane's connection: how it sends verbs, and how old the plans of its statements may become.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};

use super::NAMED;
use super::pooler::{BEGIN, KnownPooler, Sharing, is_mix_up};
use crate::model::FaultKind;
use crate::store::driver::connector::{Connection, VerbCall};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::schema::{MigrateFault, MigrateUntil, SchemaStore};

/// For migrations: no other client's operations wait for them.
const BEGIN_MIGRATION: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                               SET LOCAL idle_in_transaction_session_timeout = '5s'";

/// A release sets it to off, for its transaction. The commit of a grant waits as the session's commits do: for the
/// disk, or also for a standby.
const WAIT_FOR_DISK: &str = "SET LOCAL synchronous_commit TO DEFAULT";

const MIXED_UP: &str = "a pooler mixes up the prepared statements of its clients";

/// A connection of a client's own, with its way of sending verbs.
#[derive(Debug)]
pub(crate) struct OwnConnection {
    conn: PgConnection,
    sharing: Sharing,
    /// Each verb runs in a transaction of its own.
    own_transactions: bool,
    known: KnownPooler,
    plans: Plans,
}

/// How old the plans of a connection's prepared statements may be.
///
/// The server keeps the plan of a statement until the table is analyzed. A plan from when the table was empty may read
/// a whole index for each look-up, however large it is by now. Slow verbs show this. So after a slow verb the
/// connection prepares its statements again, and the server plans for the table as it is.
#[derive(Debug)]
struct Plans {
    made: Instant,
    /// The time of the quickest verb: the round trip to the server, which every verb takes.
    quickest: Duration,
    was_slow: bool,
}

/// A verb is slow when it takes longer than this, and longer than this multiple of the connection's quickest verb:
/// distance to the server is not slowness. A verb of two statements that are not prepared yet takes 4 round trips.
const SLOW: (Duration, u32) = (Duration::from_millis(10), 8);

/// The least age of plans to replace. Where verbs are slow for another reason, new plans then cost only a few round
/// trips in this time.
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

    /// Records the time of a verb.
    fn took(&mut self, time: Duration) {
        self.quickest = self.quickest.min(time);
        self.was_slow |= time > SLOW.0 && time / SLOW.1 > self.quickest;
    }

    /// Whether to make the plans anew now.
    fn are_outlived(&self, now: Instant) -> bool {
        self.was_slow && now.duration_since(self.made) >= OLD_ENOUGH
    }
}

impl OwnConnection {
    /// `strict`: the server's default isolation is not the one that the verbs rely on.
    pub(super) fn new(
        conn: PgConnection,
        sharing: Sharing,
        strict: bool,
        known: &KnownPooler,
    ) -> Self {
        Self {
            conn,
            sharing,
            own_transactions: strict || sharing == Sharing::Mixed,
            known: known.clone(),
            plans: Plans::made(Instant::now()),
        }
    }

    /// Runs before a verb: another connection may have found mixed statements meanwhile.
    fn check(&self) -> Result<(), Fault> {
        if self.sharing != Sharing::Mixed && self.known.get() == Some(Sharing::Mixed) {
            return Err(Fault::said(FaultKind::Disconnected, MIXED_UP));
        }
        Ok(())
    }

    /// Runs before a verb: makes plans anew that the table may have outgrown.
    async fn plan(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        // A statement without a name is planned each time it runs.
        if self.sharing != Sharing::Mixed && self.plans.are_outlived(now) {
            self.plans.made_anew(now);
            self.conn.clear_cached_statements().await?;
        }
        Ok(())
    }

    /// Runs after a verb: an error that only a pooler causes reveals the pooler.
    fn settled(&self, done: Result<(), Fault>) -> Result<(), Fault> {
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

#[async_trait(?Send)]
impl Connection for OwnConnection {
    /// Runs the verb in a transaction of its own, where it needs one.
    async fn run(&mut self, call: &mut dyn VerbCall, _bound: Duration) -> Result<(), Fault> {
        self.check()?;
        self.plan().await?;
        let began = Instant::now();
        if !self.own_transactions {
            let done = call.on(&mut self.conn).await;
            self.plans.took(began.elapsed());
            return self.settled(done);
        }
        let mut tx = self.conn.begin_with(BEGIN).await?;
        let named = self.sharing != Sharing::Mixed;
        let mut done = NAMED.scope(named, call.on(&mut *tx)).await;
        if done.is_ok() && call.must_last() {
            let waits = sqlx::raw_sql(WAIT_FOR_DISK).execute(&mut *tx).await;
            done = waits.map(drop).map_err(Fault::from);
        }
        let ended = if done.is_ok() {
            tx.commit().await
        } else {
            tx.rollback().await
        };
        ended?;
        self.plans.took(began.elapsed());
        self.settled(done)
    }

    /// Where each verb has a transaction of its own, the migrations' transaction is nested in one.
    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault> {
        if !self.own_transactions {
            return self.conn.migrate(until).await;
        }
        let mut tx = self.conn.begin_with(BEGIN_MIGRATION).await?;
        let named = self.sharing != Sharing::Mixed;
        let applied = NAMED.scope(named, tx.migrate(until)).await?;
        tx.commit().await?;
        Ok(applied)
    }

    async fn close(self: Box<Self>) {
        let _ = self.conn.close().await;
    }
}

#[cfg(test)]
#[path = "own_connection_tests.rs"]
mod tests;
