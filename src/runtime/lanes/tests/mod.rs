//! A lane on a real SQLite file, driven step by step: each test decides what happens between two statements.
//!
//! - [`again`]: sending jobs again, in how many statements, and with which answers.
//! - [`batches`]: the jobs of a batch, and the jobs of a failed batch.
//! - [`stop`]: a lane that is stopped.
//! - [`shutdown`]: a client that is shut down.
//! - [`records`]: jobs on records, which share answers and keep their order.
//! - [`post`]: answers that are on their way to a runtime which does not run them.
//! - [`doubt`]: acquires whose first sending may have happened, or may come late.

mod again;
mod batches;
mod doubt;
mod post;
mod records;
mod shutdown;
mod stop;

use std::any::Any;
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use sqlx::{Connection, SqliteConnection};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::oneshot::{self, Receiver};
use uuid::Uuid;

use super::room::MAX_BATCH;
use super::*;
use crate::model::{Busy, ClockError, Error, LockInfo, Loss, Name, ReleaseOutcome, Subject};
use crate::runtime::grant::Grant;
use crate::runtime::head::{Head, Manner, Progress};
use crate::runtime::job::{Answered, Task, Verb};
use crate::runtime::lease_guard::Guard;
use crate::runtime::schema::Preparing;
use crate::runtime::tasks::Kind;
use crate::runtime::verbs::release::{self, Release};
use crate::runtime::verbs::take::{Acquired, Take};
use crate::runtime::verbs::wanted::Wanted;
use crate::runtime::{Core, Settings, alone};
use crate::store::lease::{LeaseStore, TakeAsk, Taken};
use crate::store::lock_row::LockRowStore;
use crate::store::release::Freed;
use crate::store::row::LockRow;
use crate::store::sqlite::{BEGIN_TO_WRITE, Sqlite};
use crate::store::{Connector, Store};

const PATIENCE: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_mins(5);

type Outcome = Receiver<Result<Acquired, Error>>;

struct Bench {
    dir: tempfile::TempDir,
    core: Arc<Core>,
    queue: mpsc::UnboundedSender<Message>,
    lane: Lane,
}

impl Bench {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let connector = Sqlite::from_url(&url(dir.path())).unwrap();
        let settings = Settings {
            holder: "test".into(),
            operation_timeout: PATIENCE,
            preparing: Preparing {
                migrate: true,
                quarantine: None,
            },
            clean_every: None,
            clock_error: ClockError::new(Duration::ZERO),
            session_ttl: Duration::from_secs(30),
        };
        let (core, _) = Core::start(connector.clone(), settings).await.unwrap();
        let (queue, received) = mpsc::unbounded_channel();
        let link = Link::new(connector, PATIENCE, &Arc::default());
        let lane = Lane::new(link, received, Sqlite::REQUEST, "test".into());
        Self {
            dir,
            core,
            queue,
            lane,
        }
    }

    /// An acquire of `name`, and the receiver of its outcome.
    fn take(&self, name: &str) -> (Task<Take>, Outcome) {
        let (reply, outcome) = oneshot::channel();
        let ask = TakeAsk {
            name: Name::new(name).unwrap(),
            grant_id: Uuid::new_v4(),
            ttl: TTL,
            holder: "test".into(),
            session: None,
            barging: false,
        };
        let give_up = Moment::now() + PATIENCE;
        let wanted = Wanted::new(&self.core, (&ask.name, ask.grant_id), TTL, None, None);
        let take = Take::task(ask, wanted, reply, give_up);
        (take, outcome)
    }

    /// The same, after the connection broke under it this often.
    fn doubtful(&self, name: &str, doubts: u32) -> (Task<Take>, Outcome) {
        let (mut take, outcome) = self.take(name);
        take.head.progress.sent = true;
        take.head.progress.doubts = doubts;
        (take, outcome)
    }

    fn send(&self, job: impl Into<Job>) {
        self.queue.send(Message::Job(job.into())).unwrap();
    }

    fn flush(&self, reply: oneshot::Sender<()>) {
        self.queue.send(Message::Flush(reply)).unwrap();
    }

    /// Waits for the next batch, and executes it.
    async fn step(&mut self) {
        let gather = tokio::time::timeout(Duration::from_mins(1), self.lane.gather());
        assert!(gather.await.expect("something is sent"));
        assert!(self.lane.connect().await);
        let batch = self.lane.pick();
        self.lane.execute(batch).await;
    }

    /// The lane's answer to an acquire.
    async fn granted(&mut self, (take, mut outcome): (Task<Take>, Outcome)) -> Guard {
        self.send(take);
        self.step().await;
        match answer(&mut outcome).expect("an answer") {
            Acquired::Held(guard) => guard,
            Acquired::Busy(busy) => panic!("{busy}"),
        }
    }

    /// A connection of the application's.
    async fn other(&self) -> SqliteConnection {
        let url = url(self.dir.path());
        SqliteConnection::connect(&url).await.unwrap()
    }

    /// How many transactions were committed to the file. Each ends with a frame of the WAL that has the size of the
    /// file (sqlite.org/fileformat.html, section 4.1). There are too few of them for a checkpoint. A transaction that
    /// changes no byte, such as a renewal within the same millisecond, does not count.
    fn commits(&self) -> usize {
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let wal = std::fs::read(self.dir.path().join("lane.db-wal")).unwrap();
        let page = usize::try_from(number(&wal[8..12])).unwrap();
        let frames = wal[32..].chunks_exact(24 + page);
        frames.filter(|frame| number(&frame[4..8]) > 0).count()
    }

    async fn holder(&self, name: &str) -> Option<LockInfo> {
        let name = Name::new(name).unwrap();
        let row = self.other().await.lock_inspect(&name).await.unwrap();
        row.map(|row| row.info().unwrap())
    }
}

fn url(dir: &Path) -> String {
    format!("sqlite:{}", dir.join("lane.db").display())
}

async fn sql(conn: &mut SqliteConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(conn).await.unwrap();
}

/// The outcome of an acquire, if it has arrived.
fn answer<T>(outcome: &mut Receiver<Result<T, Error>>) -> Option<T> {
    match outcome.try_recv() {
        Ok(answer) => Some(answer.unwrap()),
        Err(TryRecvError::Empty) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The last release of a grant, as its guard hands it in.
fn release_of(guard: &Guard) -> (Task<Release>, Receiver<Result<ReleaseOutcome, Error>>) {
    let (reply, outcome) = oneshot::channel();
    let progress = Progress::within(PATIENCE);
    let waiters = &guard.core().waiters;
    let release = release::of(guard.grant(), waiters, Some(reply), progress);
    (release, outcome)
}

fn inspect(name: &str) -> (Job, Receiver<Result<Option<LockRow>, Error>>) {
    let (reply, found) = oneshot::channel();
    let name = Name::new(name).unwrap();
    let progress = Progress::within(PATIENCE);
    let head = Head::new(
        Subject::Lock(name.clone()),
        "inspect",
        Manner::Look,
        progress,
    );
    let look = async move |store: &mut dyn Store| store.lock_inspect(&name).await;
    (alone(head, look, reply).into(), found)
}

fn task<V: Verb>(job: &Job) -> Option<&Task<V>> {
    (&**job as &dyn Any).downcast_ref()
}

fn as_take(job: &Job) -> Option<&Task<Take>> {
    task(job)
}

fn as_release(job: &Job) -> Option<&Task<Release>> {
    task(job)
}
