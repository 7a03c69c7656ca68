//! A lane's connection: how it sends verbs.

use std::time::Duration;

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
        }
    }

    /// Runs before a verb: another connection may have found mixed statements meanwhile.
    fn check(&self) -> Result<(), Fault> {
        if self.sharing != Sharing::Mixed && self.known.get() == Some(Sharing::Mixed) {
            return Err(Fault::said(FaultKind::Disconnected, MIXED_UP));
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
        if !self.own_transactions {
            let done = call.on(&mut self.conn).await;
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
