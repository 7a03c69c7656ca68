//! A lane's connection: how its verbs are sent, and how old the plans of its statements may become.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use sqlx::{Connection, PgConnection};

use super::NAMED;
use super::pooler::{BEGIN, Known, Sharing, is_mix_up};
use crate::model::FaultKind;
use crate::store::fault::Fault;
use crate::store::migrate::MigrateFault;
use crate::store::schema::SchemaStore;
use crate::store::{Call, Session};

/// For migrations, of which no other client's operations wait.
const BEGIN_MIGRATION: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                               SET LOCAL idle_in_transaction_session_timeout = '5s'";

const MIXED_UP: &str = "a pooler mixes the prepared statements of its clients up";

/// A connection of a client's own, and how its verbs are sent.
#[derive(Debug)]
pub(crate) struct PgSession {
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

impl PgSession {
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
impl Session for PgSession {
    /// In a transaction of its own, where that is needed.
    async fn run(&mut self, call: &mut dyn Call) -> Result<(), Fault> {
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
        let done = NAMED.scope(named, call.on(&mut *tx)).await;
        let ended = if done.is_ok() {
            tx.commit().await
        } else {
            tx.rollback().await
        };
        ended?;
        self.plans.took(began.elapsed());
        self.settled(done)
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
