//! A running client: its parts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use uuid::Uuid;

use super::base::tasks::TaskKind;
use super::base::timer::sleep_until;
use super::batch::handle::Lanes;
use super::held::holdings::Holdings;
use super::held::session::Session;
use super::requests::pending_grant::PendingGrant;
use super::requests::read::Read;
use super::upkeep::cleaner::Cleaner;
use super::upkeep::known_rows::KnownRows;
use super::upkeep::proven_pools::ProvenPools;
use super::upkeep::seen_keys::SeenKeys;
use super::wait::cohort::Cohorts;
use super::wait::queue::Queue;
use super::wait::single_flight::SingleFlight;
use super::wait::waiters::Waiters;
use crate::model::{Engine, Error, Kind, Moment, Name, RecordKey, Subject};
use crate::store::driver::capabilities::Capabilities;
use crate::store::driver::engines::Driver;
use crate::store::verbs::Store;
use crate::store::verbs::permit::pass_any;
use crate::store::verbs::queue::PassWhy;
use crate::store::verbs::record_row::RecordRow;

/// A running client. The parts hold each other where they need each other; nothing in them knows the whole.
pub(crate) struct Core {
    /// What sends.
    pub(crate) lanes: Arc<Lanes>,
    /// What is held.
    pub(crate) holdings: Arc<Holdings>,
    /// Who waits in this client.
    pub(crate) waiters: Arc<Waiters>,
    /// Who waits in the database.
    pub(crate) queue: Arc<Queue>,
    pub(crate) cohorts: Arc<Cohorts>,
    /// The keys whose attempts, and whose transactions, this client runs now.
    pub(crate) flights: Arc<SingleFlight>,
    /// For each key, the one task that asks the database for all tasks of this client that wait for another client's
    /// attempt.
    pub(crate) pollers: Arc<SingleFlight>,
    /// What is known of rows.
    pub(crate) rows: Arc<KnownRows>,
    /// Recently seen keys: these records probably exist.
    pub(crate) seen_keys: SeenKeys,
    /// Pools that are known to lead to this database. Only a call through such a pool is answered from memory.
    pub(crate) proven: ProvenPools,
    pub(super) cleaner: Cleaner,
    pub(crate) server: ServerFacts,
}

/// What a client knows of its server and its database, since it connected.
#[derive(Debug)]
pub(crate) struct ServerFacts {
    pub(crate) driver: Driver,
    pub(crate) capabilities: Capabilities,
    /// For messages. Code asks the `capabilities` instead.
    pub(crate) engine: Engine,
    pub(crate) version: String,
    /// Other servers take writes too.
    pub(crate) multi_writer: bool,
    /// A text of the database can have every character.
    pub(crate) every_character: bool,
    /// The largest outcome that the server accepted when this client connected, in bytes.
    pub(crate) largest_outcome: usize,
    /// The database's own id.
    pub(crate) database: Uuid,
}

impl ServerFacts {
    /// The text as this database can store it: a PostgreSQL database refuses a statement with a character that its
    /// encoding lacks. If that is neither UTF-8 nor `SQL_ASCII`, an escape (`\u{fc}`) replaces each one outside of
    /// ASCII.
    pub(crate) fn legible(&self, text: &Arc<str>) -> Arc<str> {
        if self.every_character || text.is_ascii() {
            return Arc::clone(text);
        }
        let mut legible = String::with_capacity(text.len());
        for character in text.chars() {
            if character.is_ascii() {
                legible.push(character);
            } else {
                legible.extend(character.escape_unicode());
            }
        }
        legible.into()
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut core = f.debug_struct("Core");
        core.field("target", &self.lanes.target)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// The client's session. Opens one when there is none that is live.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, Error> {
        let session = self.holdings.session().await?;
        self.keep_clean();
        Ok(session)
    }

    /// A grant that is asked for. `session`: that of the lock, if it has one.
    pub(crate) fn wanted(
        &self,
        grant: (&Name, Uuid),
        ttl: Duration,
        max_hold: Option<Duration>,
        session: Option<&Arc<Session>>,
    ) -> PendingGrant {
        let whose = (&self.holdings, &self.waiters);
        PendingGrant::new(whose, grant, ttl, max_hold, session)
    }

    /// Reads the record of a key.
    pub(crate) async fn read_record(&self, key: &RecordKey) -> Result<Option<RecordRow>, Error> {
        let progress = self.lanes.progress();
        let read = |reply| Read::task(key, progress, reply);
        self.lanes.answer(read).await
    }

    /// Grants a free name to its first waiters. `false`: its row is locked. Then, or if it fails, a waiter finds the
    /// name free a little later, and passes it on.
    pub(crate) async fn pass_on(&self, name: &Name, kind: Kind) -> Result<bool, Error> {
        let (why, has_permits) = (PassWhy::Orphaned, kind.has_permits());
        let head = self.lanes.wish(Subject::Lock(name.clone()), "pass on");
        let name = name.clone();
        let pass =
            async move |store: &mut dyn Store| pass_any(store, &name, why, has_permits).await;
        let passed = self.lanes.run(head, pass).await?;
        if let Some(passed) = &passed {
            self.queue.all_passed(&passed.next);
        }
        Ok(passed.is_some())
    }

    /// Waits until all jobs sent so far are done, but no longer than an operation may take. A job that takes longer
    /// meets an unreachable database or a row that is locked for long.
    pub(crate) async fn flush(&self) {
        let until = Moment::now() + self.lanes.operation_timeout;
        self.queue.keepers.recall_all();
        let (lanes, tasks) = (&self.lanes, &self.lanes.tasks);
        let all = async {
            lanes.flush().await;
            let kinds = [TaskKind::Work, TaskKind::Finish, TaskKind::Order];
            tasks.ended(&kinds, tasks.mark()).await;
            // Guards that the tasks dropped at their end send statements too.
            lanes.flush().await;
        };
        select! {
            () = all => {}
            () = sleep_until(until) => {}
        }
    }

    /// Turns the cleaner on: records or tokens are in use.
    pub(crate) fn keep_clean(&self) {
        self.cleaner.start();
    }
}
