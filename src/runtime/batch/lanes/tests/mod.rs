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
mod freed;
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

use super::batch_limits::MAX_BATCH;
use super::*;
use crate::model::{Busy, ClockError, Error, LockInfo, Loss, Name, ReleaseOutcome, Subject};
use crate::runtime::Core;
use crate::runtime::base::settings::{Preparing, Settings};
use crate::runtime::base::tasks::TaskKind;
use crate::runtime::batch::alone::alone;
use crate::runtime::batch::handle::{Channels, Lanes};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::batch::job::{AnswerTime, Request, Task};
use crate::runtime::held::grant::Grant;
use crate::runtime::held::guard::Guard;
use crate::runtime::held::guards::Guards;
use crate::runtime::held::holdings::{Holdings, Sessions};
use crate::runtime::held::renew::Renewals;
use crate::runtime::requests::ending::Ending;
use crate::runtime::requests::exchange;
use crate::runtime::requests::release;
use crate::runtime::requests::release::Release;
use crate::runtime::requests::take::{AcquireAnswer, Take};
use crate::store::driver::connector::Connector;
use crate::store::sqlite::{BEGIN_TO_WRITE, Sqlite};
use crate::store::verbs::Store;
use crate::store::verbs::lease::{LeaseStore, TakeOutcome, TakeParams};
use crate::store::verbs::lock_row::LockRowStore;
use crate::store::verbs::release::FreeOutcome;
use crate::store::verbs::row::LockRow;

const PATIENCE: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_mins(5);

type Outcome = Receiver<Result<AcquireAnswer<Busy>, Error>>;

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
            max_connections: 4,
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
        let lane = Lane::new(link, received, Sqlite::REQUEST, "test".into())
            .with_shared(exchange::shared(0));
        Self {
            dir,
            core,
            queue,
            lane,
        }
    }

    /// From now on the client, and its guards, send to the lane of the bench.
    fn redirect(&mut self) {
        let core = Arc::get_mut(&mut self.core).unwrap();
        let channels = Channels {
            lanes: vec![LaneHandle::new(self.queue.clone())],
            aside: self.queue.clone(),
            slow: mpsc::unbounded_channel().0,
        };
        let tasks = core.lanes.tasks.clone();
        let target = ("test".into(), PATIENCE);
        let lanes = Arc::new(Lanes::new(channels, Arc::default(), target, true, tasks));
        let on_end = Ending {
            lanes: Arc::clone(&lanes),
            waiters: Arc::clone(&core.waiters),
        };
        core.holdings = Arc::new(Holdings {
            lanes: Arc::clone(&lanes),
            renewals: Renewals::new(Sqlite::RENEWALS).0,
            sessions: Sessions::default(),
            guards: Guards::default(),
            on_end: Arc::new(on_end),
            settings: core.holdings.settings.clone(),
        });
        core.lanes = lanes;
    }

    /// An acquire of `name`, and the receiver of its outcome.
    fn take(&self, name: &str) -> (Task<Take>, Outcome) {
        let (reply, outcome) = oneshot::channel();
        let params = TakeParams {
            name: Name::new(name).unwrap(),
            grant_id: Uuid::new_v4(),
            ttl: TTL,
            holder: "test".into(),
            session: None,
        };
        let give_up = Moment::now() + PATIENCE;
        let wanted = self
            .core
            .wanted((&params.name, params.grant_id), TTL, None, None);
        let take = Take::task(params, wanted, reply, give_up);
        (take, outcome)
    }

    /// The same, after the connection broke under it this often.
    fn doubtful(&self, name: &str, doubts: u32) -> (Task<Take>, Outcome) {
        let (mut take, outcome) = self.take(name);
        take.head.progress.sent = true;
        take.head.progress.doubts = doubts;
        (take, outcome)
    }

    /// The last release of a grant, as its guard hands it in.
    fn release_of(
        &self,
        guard: &Guard,
    ) -> (Task<Release>, Receiver<Result<ReleaseOutcome, Error>>) {
        let (reply, outcome) = oneshot::channel();
        let (waiters, progress) = (&self.core.waiters, Progress::within(PATIENCE));
        let release = release::of(guard.grant(), waiters, Some(reply), progress);
        (release, outcome)
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
            AcquireAnswer::Held(guard) => guard,
            AcquireAnswer::Not(busy) => panic!("{busy}"),
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

fn inspect(name: &str) -> (Job, Receiver<Result<Option<LockRow>, Error>>) {
    let (reply, found) = oneshot::channel();
    let name = Name::new(name).unwrap();
    let progress = Progress::within(PATIENCE);
    let head = JobHead::new(
        Subject::Lock(name.clone()),
        "inspect",
        Manner::Look,
        progress,
    );
    let look = async move |store: &mut dyn Store| store.lock_inspect(&name).await;
    (alone(head, look, reply).into(), found)
}

fn task<V: Request>(job: &Job) -> Option<&Task<V>> {
    (&**job as &dyn Any).downcast_ref()
}

fn as_take(job: &Job) -> Option<&Task<Take>> {
    task(job)
}

fn as_release(job: &Job) -> Option<&Task<Release>> {
    task(job)
}
