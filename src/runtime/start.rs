//! Starting a client: its threads, and the checks on its first connection.

use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::alphabet::Alphabet;
use super::clean::Cleaner;
use super::cohort::Cohorts;
use super::guards::Guards;
use super::lanes::{Lane, LaneHandle};
use super::link::{Link, Way};
use super::meter;
use super::proven::ProvenPools;
use super::renew::Renewals;
use super::schema::Preparing;
use super::seen_keys::SeenKeys;
use super::sessions::Sessions;
use super::settings::Settings;
use super::tasks::{Kind, Tasks};
use super::threads::{LANES, own_runtime, spawn};
use super::waiters::Waiters;
use super::{Core, renew, schema, slow};
use crate::model::{ConnectError, Error};
use crate::store::Connector;
use crate::store::schema::Server;

/// Long, because migrating waits for other migrating processes and for DDL.
const MIGRATION_LIMIT: Duration = Duration::from_mins(2);

impl Core {
    /// Connects, checks the server and the schema, and starts the threads.
    pub(crate) async fn start<C: Connector>(
        connector: C,
        settings: Settings,
    ) -> Result<(Arc<Self>, Vec<String>), Error> {
        let target: Arc<str> = connector.target().into();
        let waiters = Arc::new(Waiters::default());
        // The last lane serves looks.
        let (mut senders, queues): (Vec<_>, Vec<_>) =
            (0..=C::LANES).map(|_| mpsc::unbounded_channel()).unzip();
        let aside = senders.pop().ok_or_else(|| no_thread(&target))?;
        let (slow, orders) = mpsc::unbounded_channel();
        let (ready, started) = oneshot::channel();

        let way: Arc<Way> = Arc::default();
        let lane = {
            let (connector, timeout) = (connector.clone(), settings.operation_timeout);
            let (target, way) = (Arc::clone(&target), Arc::clone(&way));
            move |queue| {
                let link = Link::new(connector.clone(), timeout, &way);
                Lane::new(link, queue, C::REQUEST, Arc::clone(&target))
                    .with_exchange_from(C::EXCHANGE_FROM)
            }
        };
        let lanes: Vec<LaneHandle> = senders.into_iter().map(LaneHandle::new).collect();
        let homes: Vec<_> = lanes.iter().map(|lane| Arc::clone(&lane.home)).collect();
        let (preparing, timeout) = (settings.preparing, settings.operation_timeout);
        let tasks = Tasks::default();
        spawn(LANES, &target, (&tasks, Kind::Lanes), move || {
            let mut lanes: Vec<Lane> = queues.into_iter().map(&lane).collect();
            let aside = lanes.pop();
            let lanes = lanes.into_iter().zip(&homes);
            let lanes = lanes.map(|(lane, home)| lane.with_home(home));
            let lanes = lanes.chain(aside).collect();
            run_lanes(lanes, slow::run(orders, lane, timeout), preparing, ready)
        })?;
        let FirstConnection {
            server,
            largest_outcome,
            database,
            applied,
            own,
        } = started.await.map_err(|_| no_thread(&target))??;

        let link = Link::new(connector.clone(), settings.operation_timeout, &way);
        let cleaning = Link::new(connector, settings.operation_timeout, &way);
        let shared = Arc::default();
        let cleaner = Cleaner::new(&shared);
        let cleaning = (cleaning, shared, settings.clean_every);
        let spare = renew::spare::<C>(&link);
        let queue = &waiters.queue;
        let renewals = Renewals::start(link, spare, C::RENEWALS, cleaning, queue, &target, &tasks)?;
        let mut core = Self {
            lanes,
            aside,
            slow,
            capabilities: C::CAPABILITIES,
            renewals,
            cleaner,
            queue: Arc::clone(&waiters.queue),
            cohorts: Cohorts::default(),
            own,
            waiters,
            way,
            settings,
            target,
            driver: C::DRIVER,
            engine: server.engine,
            version: server.version,
            alphabet: Alphabet::new(server.every_character),
            multi_writer: server.multi_writer,
            largest_outcome,
            database,
            seen_keys: SeenKeys::default(),
            proven: ProvenPools::default(),
            turns: Arc::default(),
            pollers: Arc::default(),
            tasks,
            sessions: Sessions::default(),
            guards: Guards::default(),
            closing: RwLock::default(),
            undelivered: Mutex::default(),
            rows: Mutex::default(),
        };
        core.settings.holder = core.legible(&core.settings.holder).await;
        meter::describe();
        Ok((Arc::new(core), applied))
    }
}

fn no_thread(target: &str) -> Error {
    Error::Unreachable {
        target: target.into(),
        detail: "rowlock's own thread has stopped".into(),
    }
}

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
    slow: impl Future<Output = ()> + 'static,
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
        slow.await;
        for lane in running {
            let _ = lane.await;
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
            Ok(schema::prepare(session, engine, target, preparing).await)
        })
        .await
        .map_err(|fault| fault.into_error("migrate", target))??;
    for migration in &applied {
        tracing::info!(%target, %migration, "migration applied");
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
    Ok(FirstConnection {
        server,
        largest_outcome,
        database,
        applied,
        own: Handle::current(),
    })
}
