//! The cleaner: a background task that removes expired records, form tokens and sessions, and lock rows that are no
//! longer used.
//!
//! # Overview
//!
//! The cleaner runs on the thread of the renewals and makes a connection for each round. A round consists of small
//! batches; each batch is one short transaction. After each batch the cleaner rests four times as long as the batch
//! took. Cleaners of several processes skip each other's rows.
//!
//! On PostgreSQL it also keeps the functions of this release: it notes that they are in use.
//!
//! Records and tokens have an index on their time, and a round goes on until none is due. Lock rows have no such
//! index, because every grant and renewal would have to write it. So the cleaner walks through the table by name, a
//! few batches per round, and the next round continues where this one stopped.
//!
//! # Trust window
//!
//! Correctness does not depend on the cleaner. A record is judged by the clock, cleaned or not. A lock whose row was
//! removed starts again with a fence from the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::select;
use tokio::sync::Notify;

use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::batch::link::Link;
use crate::runtime::batch::spare::{Spare, SpareLink};
use crate::store::verbs::Store;
use crate::store::verbs::clean::CleanedRows;
use crate::store::verbs::fault::Fault;

/// The pause after a batch, as a multiple of the batch's time. It leaves the server to other clients.
const REST: u32 = 4;

/// The rows of one kind in one batch.
pub(crate) const BATCH: u32 = 500;

/// How many batches of lock rows a round looks at without finding one to remove: with a round every minute, a million
/// rows take a little more than three hours.
const LOOKS: u32 = 10;

/// The handle of the cleaner. Dropping it ends its task.
#[derive(Debug)]
pub(crate) struct Cleaner(Arc<CleanerState>);

#[derive(Debug, Default)]
pub(crate) struct CleanerState {
    wanted: AtomicBool,
    closed: AtomicBool,
    news: Notify,
}

impl CleanerState {
    async fn is_closed(&self) {
        while !self.closed.load(Ordering::Acquire) {
            self.news.notified().await;
        }
    }
}

impl Cleaner {
    pub(crate) fn new(shared: &Arc<CleanerState>) -> Self {
        Self(Arc::clone(shared))
    }

    /// Starts cleaning: from now on there may be records and tokens to clean.
    pub(crate) fn start(&self) {
        if !self.0.wanted.swap(true, Ordering::AcqRel) {
            self.0.news.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.news.notify_one();
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How often a client notes that it uses its functions. (Others drop those that nobody has noted for a day.)
const NOTE_EVERY: Duration = Duration::from_mins(30);

/// What the background does, and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CleanPlan {
    /// `None`: it does not clean.
    pub(crate) every: Option<Duration>,
    pub(crate) has_functions: bool,
    /// Makes functions that are missing.
    pub(crate) migrates: bool,
}

/// Cleans, and keeps the functions of this release.
pub(crate) async fn run(
    link: Link,
    spare: &Spare,
    shared: &CleanerState,
    plan: CleanPlan,
    target: &str,
) {
    let mut link = SpareLink::new(link, spare);
    // Processes that start together must not clean together.
    let first = |every: Duration| Moment::now() + every.mul_f64(fastrand::f64());
    let next = |every: Duration| Moment::now() + every.mul_f64(0.75 + fastrand::f64() / 2.0);
    let mut clean_at = plan.every.map(first);
    let mut note_at = plan.has_functions.then(|| first(NOTE_EVERY));
    // The last lock row that was looked at.
    let mut after = Vec::new();
    while !shared.closed.load(Ordering::Acquire) {
        let Some(at) = clean_at.into_iter().chain(note_at).min() else {
            return;
        };
        if !at.has_passed() {
            select! {
                () = shared.news.notified() => {}
                () = sleep_until(at) => {}
            }
            continue;
        }
        let is_note = note_at.is_some_and(Moment::has_passed);
        let work = async {
            if is_note {
                keep_functions(&mut link, plan.migrates, target).await
            } else {
                round(&mut link, shared, &mut after).await
            }
        };
        let done = select! {
            done = work => done,
            () = shared.is_closed() => Ok(()),
        };
        if let Err(fault) = done {
            tracing::warn!(%target, error = %fault, "cannot remove expired rows, will try again");
        }
        link.give_back().await;
        if is_note {
            note_at = Some(next(NOTE_EVERY));
        } else {
            clean_at = plan.every.map(next);
        }
    }
    link.give_back().await;
}

/// A client that was cut off for a day may find that others have dropped its functions.
async fn keep_functions(link: &mut SpareLink<'_>, makes: bool, target: &str) -> Result<(), Fault> {
    let link = link.connected().await?;
    let keep = async |conn: &mut dyn Store| conn.keep_functions(makes).await;
    let missing = link.run("clean", link.operation_timeout(), keep).await?;
    if !missing.is_empty() && !makes {
        let functions = missing.join(", ");
        tracing::error!(%target, functions, "functions of this rowlock are missing: run `rowlock migrate`");
    }
    Ok(())
}

async fn round(
    link: &mut SpareLink<'_>,
    shared: &CleanerState,
    after: &mut Vec<u8>,
) -> Result<(), Fault> {
    while shared.wanted.load(Ordering::Acquire) {
        let cleaned = batch(link, shared, async |conn| conn.clean(BATCH).await).await?;
        if !cleaned.is_some_and(|cleaned| cleaned.is_full(BATCH)) {
            break;
        }
    }
    let mut looks = LOOKS;
    while looks > 0 {
        let walk = async |conn: &mut dyn Store| conn.lock_clean(after, BATCH).await;
        let Some(cleaned) = batch(link, shared, walk).await? else {
            break;
        };
        if cleaned.removed == 0 {
            looks -= 1;
        }
        let is_last = cleaned.last.is_none();
        *after = cleaned.last.unwrap_or_default();
        if is_last {
            break;
        }
    }
    Ok(())
}

/// Runs one batch, then rests. `None`: the client is closed.
async fn batch<T>(
    spare: &mut SpareLink<'_>,
    shared: &CleanerState,
    work: impl AsyncFnOnce(&mut dyn Store) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    if shared.closed.load(Ordering::Acquire) {
        return Ok(None);
    }
    let link = spare.connected().await?;
    let began = Moment::now();
    let done = link.run("clean", link.operation_timeout(), work).await?;
    spare.rest(Moment::now() + began.elapsed() * REST).await;
    Ok(Some(done))
}

impl CleanedRows {
    /// Whether the batch was full, so that more rows may be due.
    pub(crate) fn is_full(&self, batch: u32) -> bool {
        let most = self.outcomes.max(self.records);
        let most = most.max(self.tokens).max(self.sessions);
        most >= u64::from(batch)
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use sqlx::Connection;

    use super::*;
    use crate::model::{Fingerprint, Name};
    use crate::store::sqlite::{BEGIN_TO_WRITE, Sqlite};
    use crate::store::verbs::clean::CleanStore;
    use crate::store::verbs::form_token::{FormTokenStore, TokenParams};
    use crate::store::verbs::lock_row::{LockRowStore, RowAction};
    use crate::store::verbs::schema::SchemaStore;

    const PATIENCE: Duration = Duration::from_mins(1);

    async fn new<'a>(
        dir: &tempfile::TempDir,
        spare: &'a Spare,
    ) -> (SpareLink<'a>, sqlx::SqliteConnection, CleanerState) {
        let url = format!("sqlite:{}/test.db?mode=rwc", dir.path().display());
        let sqlite = Sqlite::from_url(&url).unwrap();
        let mut conn = sqlite.open(PATIENCE).await.unwrap();
        conn.migrate(crate::store::verbs::schema::MigrateUntil::Now)
            .await
            .unwrap();
        let shared = CleanerState::default();
        shared.wanted.store(true, Ordering::Release);
        let link = Link::new(sqlite, PATIENCE, &Arc::default());
        (SpareLink::new(link, spare), conn, shared)
    }

    #[tokio::test]
    async fn a_round_goes_on_until_no_token_is_due() {
        let dir = tempfile::tempdir().unwrap();
        let spare = Spare::new(1);
        let (mut link, mut conn, shared) = new(&dir, &spare).await;
        let mut tx = conn.begin_with(BEGIN_TO_WRITE).await.unwrap();
        for n in 0..=2 * BATCH {
            let params = TokenParams {
                scope: b"me"[..].into(),
                digest: Fingerprint::of(n.to_string()),
                ttl: Duration::ZERO,
            };
            tx.tx_token_issue(&params).await.unwrap();
        }
        tx.commit().await.unwrap();
        round(&mut link, &shared, &mut Vec::new()).await.unwrap();
        assert_eq!(conn.clean(BATCH).await.unwrap().tokens, 0);
    }

    #[tokio::test]
    async fn a_round_looks_at_some_lock_rows_and_the_next_one_goes_on_there() {
        let dir = tempfile::tempdir().unwrap();
        let spare = Spare::new(1);
        let (mut link, mut conn, shared) = new(&dir, &spare).await;
        let mut tx = conn.begin_with(BEGIN_TO_WRITE).await.unwrap();
        for n in 1..=LOOKS * BATCH + 1 {
            let name = Name::new(&format!("n{n:05}")).unwrap();
            tx.lock_row(&name, RowAction::Make).await.unwrap();
        }
        tx.commit().await.unwrap();
        let mut after = Vec::new();
        round(&mut link, &shared, &mut after).await.unwrap();
        assert_eq!(after, format!("n{:05}", LOOKS * BATCH).into_bytes());
        round(&mut link, &shared, &mut after).await.unwrap();
        assert!(after.is_empty(), "from the beginning again");
    }
}
