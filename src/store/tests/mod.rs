//! What every engine promises of the queue and of exchanges: each engine's `queue_tests.rs` runs all of these cases.

pub(crate) mod confirming;
pub(crate) mod deadlocks;
pub(crate) mod exchange;
pub(crate) mod exchange_stress;
pub(crate) mod in_tx;
pub(crate) mod joining;
pub(crate) mod late;
mod list;
pub(crate) mod locked;
pub(crate) mod passing;
pub(crate) mod pause;
mod permits;
pub(crate) mod records;
pub(crate) mod rows;
pub(crate) mod stress;

pub(crate) use list::queue_cases;
pub(crate) use permits::{
    edges as permit_edges, ends as permit_ends, granting as permit_granting,
    stress as permit_stress,
};

use std::time::Duration;

use rowlock_test::patience;
use uuid::Uuid;

use super::verbs::clean::CleanStore;
use super::verbs::deadlock::DeadlockStore;
use super::verbs::fault::Fault;
use super::verbs::in_tx::InTxStore;
use super::verbs::lease::{LeaseStore, TakeOutcome, TakeParams};
use super::verbs::list::{KeyRange, ListStore};
use super::verbs::lock_row::{LockRowStore, RowAction};
use super::verbs::pause::PauseStore;
use super::verbs::permit::{PermitStore, WeighOutcome, WeighParams};
use super::verbs::quarantine::QuarantineStore;
use super::verbs::queue::{
    ConfirmOutcome, ConfirmParams, EndedGrant, FenceBlock, JoinOutcome, JoinParams, LookOutcome,
    LookParams, PassOutcome, PassParams, PassWhy, QueueStore,
};
use super::verbs::record::RecordStore;
use super::verbs::release::{FreeOutcome, ReleaseParams};
use super::verbs::row::LockRow;
use super::verbs::session::{OpenParams, SessionStore};
use crate::model::{FaultKind, Name, Share};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// For a case that asks more than a hundred times before the TTL matters, or whose clients may have to wait for
/// windows of the dead.
pub(crate) const LONG_TTL: Duration = Duration::from_mins(30);

/// A confirm that reserves nothing.
pub(crate) fn confirm_params(name: Name, grant_id: Uuid) -> ConfirmParams {
    ConfirmParams {
        name,
        grant_id,
        ttl: TTL,
        session: None,
        fences: 0,
    }
}

/// What a verb has done. `None`: a row is locked. PostgreSQL reports a cancelled statement if the limit of one lock
/// ends just as the statement gets that lock.
pub(crate) fn unless_locked<T>(answer: Result<Option<T>, Fault>) -> Option<T> {
    match answer {
        Err(fault) if fault.kind == FaultKind::Interrupted => None,
        answer => answer.unwrap(),
    }
}

/// Asks until no row is locked: a busy machine may take longer than a verb waits for a row. (A macro: the futures of
/// an async closure would not be `Send`.)
macro_rules! until_unlocked {
    ($params:expr) => {{
        let began = std::time::Instant::now();
        loop {
            if let Some(told) = $params {
                break told;
            }
            let waited = began.elapsed();
            assert!(
                waited < rowlock_test::patience(),
                "a transaction has the row locked"
            );
        }
    }};
}
pub(crate) use until_unlocked;

/// What a release has done. `None`: a row is locked.
pub(crate) fn freed(answer: Result<Vec<FreeOutcome>, Fault>) -> Option<FreeOutcome> {
    match answer {
        Err(fault) if fault.kind == FaultKind::LockTimeout => None,
        freed => Some(freed.unwrap().remove(0)).filter(|freed| *freed != FreeOutcome::Locked),
    }
}

/// A case that ends.
pub(crate) async fn in_time(case: impl Future<Output = ()>) {
    let done = tokio::time::timeout(patience(), case).await;
    done.expect("done within the patience of a test");
}

/// The verbs that the cases need.
pub(crate) trait Verbs:
    LeaseStore
    + LockRowStore
    + QueueStore
    + PermitStore
    + DeadlockStore
    + CleanStore
    + InTxStore
    + ListStore
    + PauseStore
    + QuarantineStore
    + RecordStore
    + 'static
{
}

impl<T> Verbs for T where
    T: LeaseStore
        + LockRowStore
        + QueueStore
        + PermitStore
        + DeadlockStore
        + CleanStore
        + InTxStore
        + ListStore
        + PauseStore
        + QuarantineStore
        + RecordStore
        + 'static
{
}

/// An empty database of an engine's.
pub(crate) trait Place: Clone + Send + Sync + 'static {
    type Verbs: Verbs;

    /// The time of a minute ago, in SQL.
    const AGO: &'static str;

    /// The time of eleven days ago, in SQL.
    const LONG_AGO: &'static str;

    /// The fence of eleven days ago, in SQL.
    const OLD_FENCE: &'static str;

    /// How a transaction begins that locks the row of every name. (SQLite: that locks the file.)
    const LOCK: &'static str;

    /// Whether a transaction that writes keeps all others from writing.
    const LOCKS_ALL: bool = false;
    /// How long a verb takes at least that waits for a locked row. (SQLite: that waits for the file twice.)
    const ROW_WAIT: Duration = Duration::from_millis(20);

    fn connect(&self) -> impl Future<Output = Self::Verbs> + Send;

    fn run(conn: &mut Self::Verbs, sql: &str) -> impl Future<Output = ()> + Send;

    fn numbers(conn: &mut Self::Verbs, sql: &str) -> impl Future<Output = Vec<i64>> + Send;
}

/// A client with a session.
pub(crate) struct Client<P: Place> {
    pub(crate) conn: P::Verbs,
    pub(crate) session: Uuid,
    /// What it asks for.
    ttl: Duration,
}

impl<P: Place> Client<P> {
    pub(crate) async fn new(place: &P) -> Self {
        Self::with_ttl(place, TTL).await
    }

    /// With a session of this time, and asks that are not shorter.
    pub(crate) async fn with_ttl(place: &P, ttl: Duration) -> Self {
        let mut conn = place.connect().await;
        let session = Uuid::new_v4();
        let open = OpenParams {
            id: session,
            ttl,
            holder: session.to_string().into(),
        };
        // SQLite's file may be busy.
        loop {
            match conn.session_open(&open).await {
                Err(fault) if fault.kind == FaultKind::LockTimeout => {}
                opened => break opened.unwrap(),
            }
        }
        let ttl = ttl.max(TTL);
        Self { conn, session, ttl }
    }

    pub(crate) fn ask(&self, name: &str) -> JoinParams {
        JoinParams {
            name: named(name),
            grant_id: Uuid::new_v4(),
            session: self.session,
            in_session: false,
            ttl: self.ttl,
            holder: "client".into(),
            most: 100,
        }
    }

    /// `None`: the row is locked.
    pub(crate) async fn try_join(&mut self, params: &JoinParams) -> Option<JoinOutcome> {
        unless_locked(self.conn.queue_join(params).await)
    }

    pub(crate) async fn join(&mut self, params: &JoinParams) -> JoinOutcome {
        until_unlocked!(self.try_join(params).await)
    }

    /// Joins, and is granted the name at once.
    pub(crate) async fn hold(&mut self, name: &str) -> Held {
        let params = self.ask(name);
        let JoinOutcome::Granted { fence } = self.join(&params).await else {
            panic!("{name} is held");
        };
        Held { params, fence }
    }

    /// Joins, and has to wait.
    pub(crate) async fn wait(&mut self, name: &str) -> Waits {
        let params = self.ask(name);
        let JoinOutcome::Queued { position, .. } = self.join(&params).await else {
            panic!("{name} is free");
        };
        Waits { params, position }
    }

    /// `None`: the row is locked.
    pub(crate) async fn try_pass(&mut self, name: &str, why: PassWhy) -> Option<PassOutcome> {
        let name = named(name);
        unless_locked(self.conn.queue_pass(&PassParams { name, why }).await)
    }

    pub(crate) async fn pass(&mut self, name: &str, why: PassWhy) -> PassOutcome {
        until_unlocked!(self.try_pass(name, why).await)
    }

    pub(crate) async fn joins_permits(&mut self, params: &PermitParams) -> JoinOutcome {
        until_unlocked!(unless_locked(
            self.conn.permit_join(&params.join, params.share).await
        ))
    }

    pub(crate) async fn passes_permits(&mut self, params: &PassParams) -> PassOutcome {
        until_unlocked!(unless_locked(self.conn.permit_pass(params).await))
    }

    pub(crate) async fn weighs_permit(&mut self, params: &WeighParams) -> WeighOutcome {
        until_unlocked!(unless_locked(self.conn.permit_weigh(params).await))
    }

    pub(crate) async fn look(&mut self, waits: &Waits) -> LookOutcome {
        let params = LookParams {
            name: waits.params.name.clone(),
            grant_id: waits.params.grant_id,
            position: waits.position,
        };
        let looked = self.conn.queue_look(&[params]).await.unwrap();
        assert_eq!(looked.len(), 1);
        looked[0].clone()
    }

    pub(crate) async fn confirm(&mut self, waits: &Waits) -> ConfirmOutcome {
        until_unlocked!(self.try_confirm(waits).await)
    }

    /// `None`: the row is locked.
    pub(crate) async fn try_confirm(&mut self, waits: &Waits) -> Option<ConfirmOutcome> {
        let params = confirm_params(waits.params.name.clone(), waits.params.grant_id);
        unless_locked(self.conn.queue_confirm(&params).await)
    }

    pub(crate) async fn row(&mut self, name: &str) -> LockRow {
        let row = self
            .conn
            .lock_row(&named(name), RowAction::Look)
            .await
            .unwrap();
        row.expect("it has a row")
    }

    pub(crate) async fn run(&mut self, sql: &str) {
        P::run(&mut self.conn, sql).await;
    }

    /// Lets every grant expire.
    pub(crate) async fn expire_grants(&mut self) {
        let sql = format!(
            "UPDATE rowlock_lock SET reclaim_at = NULL, expires_at = CASE WHEN grant_id IS NOT NULL THEN {} END",
            P::AGO
        );
        self.run(&sql).await;
    }

    /// Lets the session of this client expire.
    pub(crate) async fn expire(&mut self) {
        let sql = format!(
            "UPDATE rowlock_session SET expires_at = {} WHERE holder = '{}'",
            P::AGO,
            self.session
        );
        self.run(&sql).await;
    }

    /// The lock's `waiters` are the rows of its waiters, and all of these have positions between `passed` and
    /// `next_position`.
    pub(crate) async fn check(&mut self) {
        let wrong = P::numbers(&mut self.conn, WRONG).await;
        assert_eq!(wrong, [0], "queues that do not fit their rows");
    }

    /// Whether the next waiter is this one.
    pub(crate) fn is_next(&self, passed: &PassOutcome, waits: &Waits) -> bool {
        assert_eq!(waits.params.session, self.session);
        passed.next == [waits.params.grant_id]
    }

    pub(crate) async fn take(&mut self, name: &str) -> TakeOutcome {
        let params = TakeParams {
            name: named(name),
            grant_id: Uuid::new_v4(),
            ttl: TTL,
            holder: "taker".into(),
            session: None,
        };
        let taken = self.conn.lease_take(&[params]).await.unwrap();
        taken.into_iter().next().expect("one outcome")
    }

    pub(crate) async fn release(&mut self, grant_id: Uuid, name: &str, fence: i64) -> FreeOutcome {
        until_unlocked!(self.try_release(grant_id, name, fence).await)
    }

    /// `None`: the row is locked.
    pub(crate) async fn try_release(
        &mut self,
        grant_id: Uuid,
        name: &str,
        fence: i64,
    ) -> Option<FreeOutcome> {
        let params = ReleaseParams {
            name: named(name),
            grant_id,
            fence,
            was_queued: false,
        };
        freed(self.conn.lease_release(&[params]).await)
    }
}

/// How many rows of locks do not fit their queues.
pub(crate) const WRONG: &str = "
SELECT count(*) FROM rowlock_lock l
WHERE l.waiters <> (SELECT count(*) FROM rowlock_waiter w WHERE w.name = l.name)
   OR EXISTS (SELECT 1 FROM rowlock_waiter w
              WHERE w.name = l.name AND (w.position <= l.passed OR w.position >= l.next_position))";

pub(crate) fn named(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// What a client wants of a read/write lock or a semaphore.
#[derive(Debug, Clone)]
pub(crate) struct PermitParams {
    pub(crate) join: JoinParams,
    pub(crate) share: Share,
}

pub(crate) struct Held {
    pub(crate) params: JoinParams,
    pub(crate) fence: i64,
}

pub(crate) struct Waits {
    pub(crate) params: JoinParams,
    pub(crate) position: i64,
}

impl Waits {
    pub(crate) fn leaves(&self) -> PassWhy {
        PassWhy::Left {
            grant_id: self.params.grant_id,
            at: Some(self.position),
        }
    }
}
