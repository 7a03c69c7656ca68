//! Starting a client: its threads, and the checks on its first connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::base::meter;
use super::base::settings::{Preparing, Settings};
use super::base::tasks::{TaskKind, Tasks};
use super::base::threads::{LANES, RENEWALS, own_runtime, spawn};
use super::batch::handle::{Channels, Lanes};
use super::batch::lanes::{Lane, LaneHandle, Message};
use super::batch::link::Link;
use super::batch::slow;
use super::batch::spare::{Division, FILE, RenewalLinks, Sharers, Spare};
use super::core::{Core, ServerFacts};
use super::held::guards::Guards;
use super::held::holdings::{Holdings, Sessions};
use super::held::on_end::OnEnd;
use super::held::renew::{self, Renewals};
use super::requests::ending::Ending;
use super::requests::exchange;
use super::upkeep::cleaner;
use super::upkeep::cleaner::{CleanPlan, Cleaner};
use super::upkeep::known_rows::KnownRows;
use super::upkeep::prepare::prepare;
use super::upkeep::proven_pools::ProvenPools;
use super::upkeep::seen_keys::SeenKeys;
use super::wait::cohort::Cohorts;
use super::wait::queue::Queue;
use super::wait::queue::listen::listen;
use super::wait::queue::watch::watch;
use super::wait::waiters::Waiters;
use crate::model::{ConnectError, Error};
use crate::store::driver::connector::Connector;
use crate::store::driver::engines::Driver;
use crate::store::verbs::schema::Server;

/// Long, because migrating waits for other migrating processes and for DDL.
const MIGRATION_LIMIT: Duration = Duration::from_mins(2);

impl Core {
    /// Connects, checks the server and the schema, and starts the threads.
    pub(crate) async fn start<C: Connector>(
        connector: C,
        mut settings: Settings,
    ) -> Result<(Arc<Self>, Vec<String>), Error> {
        let target: Arc<str> = connector.target().into();
        let waiters = Arc::new(Waiters::default());
        let (endpoints, tasks) = (Arc::default(), Tasks::default());
        let division = division::<C>(&settings);
        let spare = Arc::new(Spare::new(division.spare));
        let mut first = Link::new(connector, settings.operation_timeout, &endpoints);
        first.keep(true);
        let links = RenewalLinks::of(&first, division.sharing);
        let new_lane = new_lane::<C>(&target);
        let (aside, looks) = mpsc::unbounded_channel();
        let rest = Arc::default();
        let cleaner = Cleaner::new(&rest);
        let (renewals, renewing) = Renewals::new(C::RENEWALS);
        let background = Background {
            renewing,
            looks: new_lane(links.another(), looks),
            links,
            spare: Arc::clone(&spare),
            rest,
            cleaning: CleanPlan {
                every: settings.clean_every,
                has_functions: C::CAPABILITIES.has_functions,
                migrates: settings.preparing.migrate,
            },
            queue: Arc::clone(&waiters.queue),
            target: Arc::clone(&target),
        };
        let mut unless_made = CloseQueue(Some(Arc::clone(&waiters.queue)));
        // The connection of a lane is driven by the thread of the lanes: who shares it is on that thread, too.
        let (aboard, alone) = match division.sharing {
            Sharers::LaneAndLooks => (Some(background), None),
            Sharers::Looks | Sharers::Nobody => (None, Some(background)),
        };
        let lanes = (first, division.lanes, new_lane);
        let others = (aside, spare, aboard);
        let (channels, started) =
            start_lanes(lanes, others, settings.preparing, (&target, &tasks))?;
        let FirstConnection {
            server,
            largest_outcome,
            database,
            applied,
            own,
        } = started.await.map_err(|_| no_thread(&target))??;

        let lanes = Lanes::new(
            channels,
            Arc::clone(&endpoints),
            (Arc::clone(&target), settings.operation_timeout),
            C::CAPABILITIES.one_writer,
            tasks.clone(),
        );
        let lanes = Arc::new(lanes);
        if let Some(background) = alone {
            background.start(&tasks)?;
        }
        let server = ServerFacts {
            driver: Driver::of_engine(server.engine),
            capabilities: C::CAPABILITIES,
            engine: server.engine,
            version: server.version,
            multi_writer: server.multi_writer,
            every_character: server.every_character,
            largest_outcome,
            database,
        };
        settings.holder = server.legible(&settings.holder);
        unless_made.0 = None;
        let on_end: Arc<dyn OnEnd> = Arc::new(Ending {
            lanes: Arc::clone(&lanes),
            waiters: Arc::clone(&waiters),
        });
        let cohorts = Cohorts::new(own, &lanes, &waiters.queue, &on_end);
        let holdings = Holdings {
            lanes: Arc::clone(&lanes),
            renewals,
            sessions: Sessions::default(),
            guards: Guards::default(),
            on_end,
            settings,
        };
        let core = Self {
            rows: Arc::new(KnownRows::new(&lanes, C::CAPABILITIES.one_writer)),
            lanes,
            holdings: Arc::new(holdings),
            queue: Arc::clone(&waiters.queue),
            waiters,
            cohorts: Arc::new(cohorts),
            flights: Arc::default(),
            pollers: Arc::default(),
            seen_keys: SeenKeys::default(),
            proven: ProvenPools::default(),
            cleaner,
            server,
        };
        meter::describe();
        Ok((Arc::new(core), applied))
    }
}

impl Drop for Core {
    /// Ends the tasks that look and listen, because nobody waits any more, and releases what lingers.
    fn drop(&mut self) {
        self.queue.close();
        self.queue.keepers.recall_all();
    }
}

fn division<C: Connector>(settings: &Settings) -> Division {
    if C::CAPABILITIES.one_writer {
        FILE
    } else {
        Division::of(settings.max_connections, C::LANES)
    }
}

/// Makes lanes.
fn new_lane<C: Connector>(target: &Arc<str>) -> impl Fn(Link, Jobs) -> Lane + Send + 'static {
    let target = Arc::clone(target);
    move |link, queue| {
        let lane = Lane::new(link, queue, C::REQUEST, Arc::clone(&target));
        lane.with_shared(exchange::shared(C::EXCHANGE_FROM))
    }
}

/// What runs on the thread of the renewals.
struct Background {
    renewing: renew::Work,
    links: RenewalLinks,
    /// The lane that serves looks.
    looks: Lane,
    spare: Arc<Spare>,
    rest: Arc<cleaner::CleanerState>,
    cleaning: CleanPlan,
    queue: Arc<Queue>,
    target: Arc<str>,
}

impl Background {
    fn start(self, tasks: &Tasks) -> Result<(), Error> {
        let target = Arc::clone(&self.target);
        spawn(RENEWALS, &target, (tasks, TaskKind::Renewals), move || {
            own_runtime()?.block_on(self.run());
            Ok(())
        })
    }

    /// Renews, looks, cleans, and finds out whose turn in a queue it is, until the client ends.
    async fn run(self) {
        let (links, queue, spare) = (self.links, &*self.queue, &*self.spare);
        let (sessions, watches) = (links.another(), links.another());
        let (link, target) = (links.renewals, &*self.target);
        let (cleans, listens) = (link.another(), link.another());
        tokio::join!(
            self.renewing.run(link, sessions, target),
            self.looks.work(),
            cleaner::run(cleans, spare, &self.rest, self.cleaning, target),
            watch(watches, queue, target),
            listen(listens, spare, queue, target)
        );
    }
}

/// Ends the tasks of the queue when no client was made of it: its caller has dropped the future of `connect`.
struct CloseQueue(Option<Arc<Queue>>);

impl Drop for CloseQueue {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.close();
        }
    }
}

/// Starts the thread of the lanes. What its first connection reports comes later.
fn start_lanes(
    (first, count, new_lane): (Link, usize, impl Fn(Link, Jobs) -> Lane + Send + 'static),
    (aside, spare, aboard): (
        mpsc::UnboundedSender<Message>,
        Arc<Spare>,
        Option<Background>,
    ),
    preparing: Preparing,
    (target, tasks): (&Arc<str>, &Tasks),
) -> Result<(Channels, FirstAnswer), Error> {
    let (senders, queues): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
    let (slow, orders) = mpsc::unbounded_channel();
    let (ready, started) = oneshot::channel();
    let handles: Vec<LaneHandle> = senders.into_iter().map(LaneHandle::new).collect();
    let homes: Vec<_> = handles.iter().map(|lane| Arc::clone(&lane.home)).collect();
    let channels = Channels {
        lanes: handles,
        aside,
        slow,
    };
    let name = Arc::clone(target);
    spawn(LANES, target, (tasks, TaskKind::Lanes), move || {
        let (timeout, spares) = (first.operation_timeout(), first.another());
        let others = (1..count).map(|_| spares.another()).collect::<Vec<_>>();
        let links = [first].into_iter().chain(others);
        let lanes = links.zip(queues).zip(&homes);
        let lanes = lanes.map(|((link, queue), home)| new_lane(link, queue).with_home(home));
        let lanes = lanes.collect();
        let slow = slow::run(
            orders,
            spare,
            move |queue| new_lane(spares.another(), queue),
            (name, timeout),
        );
        run_lanes(lanes, (slow, aboard), preparing, ready)
    })?;
    Ok((channels, started))
}

fn no_thread(target: &str) -> Error {
    Error::Unreachable {
        target: target.into(),
        detail: "rowlock's own thread has stopped".into(),
    }
}

/// The jobs of a lane.
type Jobs = mpsc::UnboundedReceiver<Message>;

/// The answer of the first connection.
type FirstAnswer = oneshot::Receiver<Result<FirstConnection, Error>>;

/// What the first connection reported.
#[derive(Debug)]
struct FirstConnection {
    server: Server,
    largest_outcome: usize,
    database: Uuid,
    applied: Vec<String>,
    own: Handle,
}

fn run_lanes(
    mut lanes: Vec<Lane>,
    (slow, aboard): (impl Future<Output = ()> + 'static, Option<Background>),
    preparing: Preparing,
    ready: oneshot::Sender<Result<FirstConnection, Error>>,
) -> std::io::Result<()> {
    let runtime = own_runtime()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let started = match lanes.first_mut() {
            Some(first) => begin(&mut first.link, &first.target, preparing).await,
            None => return,
        };
        let failed = started.is_err();
        // The caller dropped the future of `connect`.
        if ready.send(started).is_err() || failed {
            return;
        }
        let running: Vec<_> = lanes
            .into_iter()
            .map(|lane| tokio::task::spawn_local(lane.work()))
            .collect();
        let aboard = aboard.map(|background| tokio::task::spawn_local(background.run()));
        slow.await;
        for task in running.into_iter().chain(aboard) {
            let _ = task.await;
        }
    });
    Ok(())
}

/// Uses the first connection to check the server's version and the tables.
async fn begin(
    link: &mut Link,
    target: &str,
    preparing: Preparing,
) -> Result<FirstConnection, Error> {
    link.connect()
        .await
        .map_err(|fault| fault.into_error("connect", target))?;
    let timeout = link.operation_timeout();
    let mut server = link
        .run("connect", timeout, async |store| store.server().await)
        .await;
    // The first statement may show that another kind of connection is needed.
    if !link.is_connected() && link.connect().await.is_ok() {
        server = link
            .run("connect", timeout, async |store| store.server().await)
            .await;
    }
    let server = server.map_err(|fault| fault.into_error("connect", target))?;
    if let Some(needed) = server.too_old {
        return Err(Error::Connect(ConnectError::ServerTooOld {
            target: target.into(),
            found: server.version,
            needed,
        }));
    }
    let engine = server.engine;
    let applied = link
        .lend(MIGRATION_LIMIT, async |session| {
            Ok(prepare(session, engine, target, preparing).await)
        })
        .await
        .map_err(|fault| fault.into_error("migrate", target))??;
    if !applied.is_empty() {
        let migrations = applied.join(", ");
        tracing::info!(%target, %migrations, "made or changed rowlock's tables");
    }
    let database = link
        .run("connect", link.operation_timeout(), async |store| {
            store.database_id().await
        })
        .await
        .map_err(|fault| fault.into_error("read the id in rowlock_database", target))?;
    let warnings = link
        .run("connect", link.operation_timeout(), async |store| {
            store.warnings().await
        })
        .await
        .map_err(|fault| fault.into_error("read the settings of", target))?;
    for warning in warnings {
        tracing::warn!(%target, "{warning}");
    }
    let largest_outcome = link
        .lend(link.operation_timeout(), async |session| {
            session.largest_outcome().await
        })
        .await
        .map_err(|fault| fault.into_error("read max_allowed_packet", target))?;
    link.set_largest(largest_outcome);
    Ok(FirstConnection {
        server,
        largest_outcome,
        database,
        applied,
        own: Handle::current(),
    })
}
