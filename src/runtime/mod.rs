//! Time, tasks and retries: everything between a caller's future and a connection.
//!
//! # Overview
//!
//! A client ([`Core`]) owns two threads, each with a runtime of its own:
//!
//! - `rowlock-lanes` runs the [lanes](lanes). Each has a connection, gathers the operations that
//!   arrive while its statement is in flight, and sends them as the next one. A caller's future only
//!   awaits the answer; it never owns a statement, so that dropping it can damage no connection.
//!   One more is beside them for looks at one row; [errands](errands), which may take long, get one each, and a thread.
//! - `rowlock-renew` [renews](renew) all leases that this client holds, on one or two connections of its own,
//!   and announces warnings and losses. The [cleaner](clean) is there, too.
//!
//! Neither runs any code of the caller's: a runtime whose workers are all blocked loses no lease.
//! Both end when the last handle, guard and pending operation are gone.

pub(crate) mod backoff;
pub(crate) mod clean;
mod errands;
pub(crate) mod grant;
pub(crate) mod guard;
mod lanes;
mod line;
mod link;
pub(crate) mod met;
pub(crate) mod op;
pub(crate) mod record;
mod renew;
pub(crate) mod schema;
pub(crate) mod timer;
pub(crate) mod token;
pub(crate) mod wait;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::model::{ClockError, Engine, Error, Moment, Name};
use crate::store::{Connector, Server, Store};
use clean::Cleaner;
use lanes::Lane;
use line::Lines;
use link::{Link, Way};
use met::{Met, Running};
use op::{Fate, Look, LookAt, Op, Reply, Seen};
use renew::Renewals;
use timer::sleep_until;

/// How many names a client remembers to have rows.
const MAX_ROWS: usize = 10_000;

/// What is looked at aside is read at once, or cannot be read before the caller's transaction ends (a database in
/// memory, whose tables are locked whole).
const ASIDE_PATIENCE: Duration = Duration::from_millis(250);

/// Migrating waits for other processes that migrate, and for DDL.
const MIGRATION_PATIENCE: Duration = Duration::from_mins(2);

/// How a client behaves; see the builder of the same names.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) holder: Arc<str>,
    pub(crate) patience: Duration,
    pub(crate) migrate: bool,
    pub(crate) clock_error: ClockError,
    /// How often this process cleans, if it does.
    pub(crate) clean_every: Option<Duration>,
}

impl Settings {
    /// Refuses a lease of which too little could be trusted.
    pub(crate) fn check_lease(&self, setting: &'static str, given: Duration) -> Result<(), Error> {
        if self.clock_error.allows(given) {
            return Ok(());
        }
        Err(Error::InvalidDuration {
            setting,
            given,
            bounds: "it must be more than twice the client's clock_error",
        })
    }
}

/// A running client: the way in to its lanes and its renewals.
#[derive(Debug)]
pub(crate) struct Core {
    lanes: Vec<mpsc::UnboundedSender<Op>>,
    /// Beside the lanes, for looks: a long one holds up no operation, and a caller's open transaction that keeps the
    /// lanes from writing does not keep it from looking.
    aside: mpsc::UnboundedSender<Op>,
    errands: mpsc::UnboundedSender<Op>,
    /// Whether a caller's open transaction may keep the lanes from writing.
    transaction_blocks_lanes: bool,
    pub(crate) renewals: Renewals,
    cleaner: Cleaner,
    pub(crate) lines: Arc<Lines>,
    way: Arc<Way>,
    pub(crate) settings: Settings,
    pub(crate) target: Arc<str>,
    pub(crate) engine: Engine,
    pub(crate) version: String,
    /// Other servers take writes, too.
    pub(crate) multi_writer: bool,
    /// The largest outcome that the server took when this client was connected, in bytes.
    pub(crate) largest_outcome: usize,
    /// The database's own id.
    pub(crate) database: Uuid,
    /// The records that are likely to be there.
    pub(crate) met: Met,
    /// The records that its transactions are about.
    pub(crate) running: Arc<Running>,
    /// The names that are known to have a row.
    rows: Mutex<HashMap<Name, Known>>,
}

/// What a client remembers of a name that a transaction asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Known {
    /// The last fence that a transaction of this client was granted, unless that is known to have ended.
    pub(crate) granted: Option<i64>,
    /// Somebody was seen to have a lease of it.
    pub(crate) leased: bool,
}

impl Core {
    /// Connects, checks the server and the schema, and starts the threads.
    pub(crate) async fn start<C: Connector>(
        connector: C,
        settings: Settings,
    ) -> Result<(Arc<Self>, Vec<String>), Error> {
        let target: Arc<str> = connector.target().into();
        let lines = Arc::new(Lines::default());
        // The last one is the lane for looks.
        let (mut senders, queues): (Vec<_>, Vec<_>) =
            (0..=C::LANES).map(|_| mpsc::unbounded_channel()).unzip();
        let aside = senders.pop().ok_or_else(|| stopped(&target))?;
        let (errands, orders) = mpsc::unbounded_channel();
        let (ready, started) = oneshot::channel();

        let way: Arc<Way> = Arc::default();
        let lane = {
            let (connector, patience) = (connector.clone(), settings.patience);
            let (lines, target, way) = (Arc::clone(&lines), Arc::clone(&target), Arc::clone(&way));
            move |queue| {
                let link = Link::new(connector.clone(), patience, &way);
                Lane::new(link, queue, Arc::clone(&lines), Arc::clone(&target))
            }
        };
        let (migrate, patience) = (settings.migrate, settings.patience);
        spawn("rowlock-lanes", &target, move || {
            let lanes = queues.into_iter().map(&lane).collect();
            run_lanes(lanes, errands::run(orders, lane, patience), migrate, ready)
        })?;
        let Begun {
            server,
            largest_outcome,
            database,
            applied,
        } = started.await.map_err(|_| stopped(&target))??;

        let link = Link::new(connector.clone(), settings.patience, &way);
        let cleaning = Link::new(connector, settings.patience, &way);
        let shared = Arc::default();
        let cleaner = Cleaner::new(&shared);
        let cleaning = (cleaning, shared, settings.clean_every);
        let renewals = Renewals::start(link, cleaning, &target)?;
        let core = Self {
            lanes: senders,
            aside,
            errands,
            transaction_blocks_lanes: C::TRANSACTION_BLOCKS_LANES,
            renewals,
            cleaner,
            lines,
            way,
            settings,
            target,
            engine: server.engine,
            version: server.version,
            multi_writer: server.multi_writer,
            largest_outcome,
            database,
            met: Met::default(),
            running: Arc::default(),
            rows: Mutex::default(),
        };
        Ok((Arc::new(core), applied))
    }

    /// Hands `op` to the lane of what it is about, always the same one, so that the operations on it keep their
    /// order. Looks go to the lane beside the others, and an administrator's orders are errands.
    pub(crate) fn send(&self, op: Op) {
        let lane = match &op {
            Op::Look(look) => match look.what {
                LookAt::ForceRelease(..) | LookAt::List(_) => &self.errands,
                LookAt::Inspect(..) | LookAt::Row(_, false, _) => &self.aside,
                LookAt::Row(_, true, _) => self.lane(&op),
            },
            Op::Record(op) if op.work.is_errand() => &self.errands,
            _ => self.lane(&op),
        };
        // A lane ends before its senders only when its thread panicked; the reply channel inside
        // `op` is then dropped here, and its caller learns it.
        let _ = lane.send(op);
    }

    fn lane(&self, op: &Op) -> &mpsc::UnboundedSender<Op> {
        let number = op.subject().map_or(0, |subject| {
            let mut hasher = DefaultHasher::new();
            subject.hash(&mut hasher);
            usize::try_from(hasher.finish() % self.lanes.len() as u64).unwrap_or(0)
        });
        &self.lanes[number]
    }

    /// Why the last connection could not be made; `None` when it was, or when there was no answer at all.
    pub(crate) fn unreachable(&self, doing: &'static str) -> Option<Error> {
        let fault = self.way.refusal()?;
        Some(fault.into_error(doing, &self.target))
    }

    /// Hands a look in, and waits for what it finds.
    pub(crate) async fn look<T>(&self, what: impl FnOnce(Reply<T>) -> LookAt) -> Result<T, Error> {
        self.look_within(self.settings.patience, what).await
    }

    /// The same for a look that changes nothing, while a transaction of the caller's is open.
    pub(crate) async fn look_aside<T>(
        &self,
        what: impl FnOnce(Reply<T>) -> LookAt,
    ) -> Result<T, Error> {
        let patience = if self.transaction_blocks_lanes {
            ASIDE_PATIENCE
        } else {
            self.settings.patience
        };
        self.look_within(patience, what).await
    }

    async fn look_within<T>(
        &self,
        patience: Duration,
        what: impl FnOnce(Reply<T>) -> LookAt,
    ) -> Result<T, Error> {
        let (op, answer) = Self::looking(patience, what);
        self.send(op);
        answer.await.unwrap_or_else(|_| Err(self.stopped()))
    }

    fn looking<T>(
        patience: Duration,
        what: impl FnOnce(Reply<T>) -> LookAt,
    ) -> (Op, oneshot::Receiver<Result<T, Error>>) {
        let (reply, answer) = oneshot::channel();
        let op = Op::Look(Look {
            what: what(reply),
            fate: Fate::within(patience),
        });
        (op, answer)
    }

    /// The row of `name`, made when there is none.
    pub(crate) async fn row(&self, name: &Name) -> Result<Seen, Error> {
        let making = self.make_row(name);
        self.made_row(name, making).await
    }

    fn make_row(&self, name: &Name) -> oneshot::Receiver<Result<Option<Seen>, Error>> {
        let look = |reply| LookAt::Row(name.clone(), true, reply);
        let (op, answer) = Self::looking(self.settings.patience, look);
        self.send(op);
        answer
    }

    async fn made_row(
        &self,
        name: &Name,
        making: oneshot::Receiver<Result<Option<Seen>, Error>>,
    ) -> Result<Seen, Error> {
        let Some(seen) = making.await.unwrap_or_else(|_| Err(self.stopped()))? else {
            return Err(Error::CorruptRow {
                name: name.as_str().into(),
                what: "somebody removes it as soon as it is made",
            });
        };
        self.rows().entry(name.clone()).or_default().leased |= seen.holder().is_some();
        Ok(seen)
    }

    /// The same for a version. Where a transaction of the caller's may keep the lane from writing, what there is is
    /// looked at beside it first.
    pub(crate) async fn look_version(&self, name: &Name) -> Result<Seen, Error> {
        if self.transaction_blocks_lanes {
            let look = |reply| LookAt::Row(name.clone(), false, reply);
            if let Ok(Some(seen)) = self.look_aside(look).await {
                if seen.owner.is_none() || seen.holder().is_some() {
                    return Ok(seen);
                }
                // To be freed, unless a transaction has the file: then it may have the lease pinned.
                let make = |reply| LookAt::Row(name.clone(), true, reply);
                let (op, answer) = Self::looking(ASIDE_PATIENCE, make);
                self.send(op);
                return match answer.await {
                    Ok(Ok(Some(freed))) => Ok(freed),
                    _ => Ok(seen),
                };
            }
        }
        self.row(name).await
    }

    /// The fence of `name` as everybody sees it; `None` when there is no row.
    pub(crate) async fn committed_fence(&self, name: &Name) -> Result<Option<i64>, Error> {
        let look = |reply| LookAt::Row(name.clone(), false, reply);
        Ok(self.look_aside(look).await?.map(|seen| seen.fence))
    }

    /// What this client knows of the row of `name`.
    pub(crate) fn known(&self, name: &Name) -> Option<Known> {
        self.rows().get(name).copied()
    }

    /// A transaction was granted `name`.
    pub(crate) fn remember_grant(&self, name: &Name, fence: i64) {
        self.rows().entry(name.clone()).or_default().granted = Some(fence);
    }

    /// The transaction that was granted this has ended.
    pub(crate) fn grant_ended(&self, name: &Name, fence: i64) {
        if let Some(known) = self.rows().get_mut(name) {
            known.granted = known.granted.filter(|granted| *granted != fence);
        }
    }

    /// Somebody had a lease of `name`.
    pub(crate) fn remember_lease(&self, name: &Name) {
        self.rows().entry(name.clone()).or_default().leased = true;
    }

    /// The row of `name` is gone.
    pub(crate) fn forget(&self, name: &Name) {
        self.rows().remove(name);
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<Name, Known>> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        // What is forgotten costs a look.
        if rows.len() > MAX_ROWS {
            rows.clear();
        }
        rows
    }

    /// Waits until everything that was handed in so far is done, but for no longer than an operation may take: what is
    /// not done by then has a database that is away, or a row that is locked for long.
    pub(crate) async fn flush(&self) {
        let until = Moment::now() + self.settings.patience;
        let replies: Vec<_> = self
            .lanes
            .iter()
            .map(|lane| {
                let (reply, done) = oneshot::channel();
                let _ = lane.send(Op::Flush(reply));
                done
            })
            .collect();
        for done in replies {
            tokio::select! {
                _ = done => {}
                () = sleep_until(until) => return,
            }
        }
    }

    /// Records or tokens are in use: from now on they are cleaned.
    pub(crate) fn keep_clean(&self) {
        self.cleaner.start();
    }

    /// The error for an operation whose lane is gone.
    pub(crate) fn stopped(&self) -> Error {
        stopped(&self.target)
    }
}

/// Makes rows that are missing, all together.
pub(crate) async fn make_rows(rows: Vec<(Arc<Core>, Name)>) {
    let make = |(core, name): (Arc<Core>, Name)| (core.make_row(&name), core, name);
    let making: Vec<_> = rows.into_iter().map(make).collect();
    for (making, core, name) in making {
        let _ = core.made_row(&name, making).await;
    }
}

fn stopped(target: &str) -> Error {
    Error::Unreachable {
        target: target.into(),
        detail: "rowlock's own thread has stopped".into(),
    }
}

/// A thread with a runtime of its own, that runs no code of the caller's.
fn spawn(
    name: &'static str,
    target: &str,
    body: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> Result<(), Error> {
    let run = move || {
        if let Err(error) = body() {
            tracing::error!(%error, "{name} cannot start a runtime");
        }
    };
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|error| Error::Unreachable {
        target: target.into(),
        detail: format!("the thread {name} cannot be started: {error}"),
    })
}

/// Runs `work`, which is never dropped in the middle: when the future is, a task of the caller's runtime goes on
/// with it, and drops what it brings. (sqlx leaves an open transaction in the pool when beginning one is cut off.)
pub(crate) fn finished<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    struct Finish<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

    impl<T: Send + 'static> Future for Finish<T> {
        type Output = T;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
            let Some(work) = &mut self.0 else {
                return Poll::Pending; // polled after it was done
            };
            let done = work.as_mut().poll(cx);
            if done.is_ready() {
                self.0 = None;
            }
            done
        }
    }

    impl<T: Send + 'static> Drop for Finish<T> {
        fn drop(&mut self) {
            if let (Some(work), Ok(runtime)) = (self.0.take(), runtime::Handle::try_current()) {
                runtime.spawn(work);
            }
        }
    }

    Finish(Some(Box::pin(work)))
}

/// Runs `work` on the caller's runtime to its end, also when the future that waits for it is dropped.
#[cfg(feature = "tower")]
pub(crate) fn detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(work)
}

fn own_runtime() -> std::io::Result<runtime::Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// What the first connection found.
#[derive(Debug)]
struct Begun {
    server: Server,
    largest_outcome: usize,
    database: Uuid,
    applied: Vec<String>,
}

type Started = Result<Begun, Error>;

fn run_lanes<C: Connector>(
    mut lanes: Vec<Lane<C>>,
    errands: impl Future<Output = ()> + 'static,
    migrate: bool,
    ready: oneshot::Sender<Started>,
) -> std::io::Result<()> {
    let runtime = own_runtime()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let started = match lanes.first_mut() {
            Some(first) => begin(&mut first.link, &first.target, migrate).await,
            None => return,
        };
        let failed = started.is_err();
        // Nobody waits any more: the caller dropped the future of `connect`.
        if ready.send(started).is_err() || failed {
            return;
        }
        let running: Vec<_> = lanes
            .into_iter()
            .map(|lane| tokio::task::spawn_local(lane.work()))
            .collect();
        errands.await;
        for lane in running {
            let _ = lane.await;
        }
    });
    Ok(())
}

/// The first connection: is this a server that we know, and are its tables ours?
async fn begin<C: Connector>(link: &mut Link<C>, target: &str, migrate: bool) -> Started {
    link.connect()
        .await
        .map_err(|fault| fault.into_error("connect", target))?;
    let patience = link.patience();
    let mut server = link
        .run(patience, async |conn: &mut C::Connection| {
            conn.server().await
        })
        .await;
    // The first statement may show what kind of connection it is that is needed.
    if !link.is_connected() && link.connect().await.is_ok() {
        server = link
            .run(patience, async |conn: &mut C::Connection| {
                conn.server().await
            })
            .await;
    }
    let server = server.map_err(|fault| fault.into_error("connect", target))?;
    if let Some(needed) = server.too_old {
        return Err(Error::ServerTooOld {
            target: target.into(),
            found: server.version,
            needed,
        });
    }
    let engine = server.engine;
    let applied = link
        .run(MIGRATION_PATIENCE, async |conn: &mut C::Connection| {
            Ok(schema::prepare(conn, engine, target, migrate).await)
        })
        .await
        .map_err(|fault| fault.into_error("migrate", target))??;
    for migration in &applied {
        tracing::info!(%target, %migration, "migration applied");
    }
    let database = link
        .run(link.patience(), async |conn: &mut C::Connection| {
            conn.database_id().await
        })
        .await
        .map_err(|fault| fault.into_error("read the id in rowlock_database", target))?;
    let largest_outcome = link
        .run(link.patience(), async |conn: &mut C::Connection| {
            conn.largest_outcome().await
        })
        .await
        .map_err(|fault| fault.into_error("read max_allowed_packet", target))?;
    Ok(Begun {
        server,
        largest_outcome,
        database,
        applied,
    })
}

#[cfg(all(test, feature = "sqlite"))]
#[path = "known_tests.rs"]
mod known;
