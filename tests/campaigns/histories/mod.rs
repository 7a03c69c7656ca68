//! Histories of leases and of permits: 8 processes on a few names, killed and paused at random, tell each operation
//! with the times of its invocation and its answer on the monotonic clock of this host. A [checker] of linearizability
//! judges the history of each name. `ROWLOCK_FAULT_SECONDS` is how long; a minute has 10,000 operations or more. (On a
//! machine that is too slow for that, it takes longer.)
//!
//! # The model
//!
//! A name has the greatest fence so far, and at most one live grant ([`lease::State`]).
//!
//! | operation, with its answer | possible when | then |
//! | --- | --- | --- |
//! | acquire: granted | no grant is live, and the fence is greater than all before | this grant is live |
//! | release: released | this grant is live | no grant is live |
//! | the lease ends | this grant is live | no grant is live |
//! | acquire: busy, with a holder; inspect: held; `remaining` of the guard above zero | the grant that was seen is live | |
//! | inspect: free | no grant is live | |
//!
//! The holder in the row is the number of its acquire, so that an operation that sees a grant says whose it is.
//!
//! # The end of a lease
//!
//! *The lease ends* is an operation of the environment. Each grant without an answered release has one. It is invoked
//! at the earliest moment at which the lease may end by the database's clock, and is open:
//!
//! - One TTL after the invocation of the acquire, less [2 ms](lease) because the two clocks differ. Renewals only move
//!   the expiry further. (A lock in a session, every other acquire: the invocation of the acquire, because the session
//!   may have been renewed one TTL before.)
//! - The guard's deadline, whenever the guard is asked, if that is later: the deadline is never later than the expiry.
//! - The drop of the guard, or the invocation of a release without the answer *released*, if that is earlier: the
//!   release may have reached the database. (A holder that is told *lost* may have lost the lease by its own clock
//!   only.)
//! - The invocation of the acquire, if its future was dropped: the undo may follow at once.
//!
//! So a lease may expire while its holder lives, is paused, or is dead. But it must be live whenever its guard says
//! so. Once a greater fence is known, the lease has ended: the operation ends there, which changes no verdict, and
//! makes the search short.
//!
//! # What is left open
//!
//! - An operation of a process that was killed, an acquire whose future was dropped, and an operation with an error
//!   that passes have no answer. They take effect at any moment after their invocation, or never. If another operation
//!   saw the grant of such an acquire, it was granted before that. If none did, the acquire stays open for ever.
//! - An acquire may have had a grant that it did not return: its process was paused until that grant had expired, and
//!   the acquire asked again, or answered *busy*. The grant counts when another operation saw it, and must be from
//!   before the acquire's answer.
//! - An acquire whose time is over leaves the queue. If a transaction has the row locked then, it leaves after its
//!   answer. So a grant that was passed on to it may be later than its answer.
//! - *Busy* without a holder and *lost* say nothing about the name, and are left out. So the checker does not notice
//!   an acquire that is refused although the name is free.
//! - The model has no clock. It sees that a renewal has moved the expiry only when the guard is asked.
//!
//! # Waiting
//!
//! Acquires wait in the queue of the name. The model knows no order of the waiters, and a grant that was passed on is
//! a grant. [`waiters`] looks at the queue's table meanwhile, and counts the acquires that it saw there, by their
//! outcomes. So a run without grants that were passed on is no test.
//!
//! # Permits
//!
//! Some names are read/write locks, others are semaphores of capacity 3 ([`permit`]). A name has its greatest fence so
//! far, and the live permits with their weights. A reader has weight 1, a writer that of the whole capacity.
//!
//! | operation, with its answer | possible when | then |
//! | --- | --- | --- |
//! | acquire: granted | the weights of the live permits and its own are at most the capacity; the fence of a reader is that of the last write (or the row's first one), another one is greater than all before | this permit is live |
//! | release: released; the permit ends | it is live | it is gone |
//! | `remaining` above zero | it is live | |
//! | downgrade: done | it is live | weight 1 |
//! | upgrade: done | it is live, and no other; the fence is greater than all before | the weight of a writer |
//!
//! A permit ends as a lease does. Busy says nothing, nor does an upgrade that is refused. Nobody sees another one's
//! permit. So these are left out, or are less than what may have happened, and any history that was possible stays so:
//!
//! - A permit that no acquire returned. It only takes room.
//! - The latest moment of an end: it takes place as early as it can, because that only makes room.
//! - A downgrade without an answer may have any weight afterwards: it counts as a reader at once. It may also be found
//!   to be a writer all the time, by an upgrade that gives no new fence. But after the answer to an upgrade it is a
//!   writer, whatever is still on its way.
//! - An upgrade without an answer: it counts as a reader.
//! - A write without an answer (by an acquire, or by an upgrade) counts only when readers have its fence. It took
//!   place between the invocation of such an operation and the first reader's answer, when no other permit was live.
//!
//! # A refusal
//!
//! It shows the operations before the first answer that cannot be, and keeps the whole history in a file, an event a
//! line.
//!
//! # Another primitive
//!
//! It adds its questions and answers to [`event`], a task to [`worker`], and a [`Primitive`] beside [`Lease`] and
//! [`Permits`]. What it knows of the ends of its grants is in [`grants`].

mod by_hand;
mod checker;
mod event;
mod grants;
mod lease;
mod permit;
mod permit_by_hand;
mod permit_worker;
mod raw;
mod raw_permit;
mod raw_queue;
mod waiters;
mod worker;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use by_hand::the_checker_sees_violations;
use checker::{Model, Operation};
use event::{Event, Record, records};
use grants::Counts;
use lease::Lease;
use permit::Permits;
use rand::Rng;
pub(crate) use raw::Variant;
pub(crate) use raw_permit::Flaw;
use rowlock::Engine;
use rowlock_test::{Crew, Db, patience};
use serde::{Deserialize, Serialize};
use waiters::Outcomes;

use crate::campaign::seconds;
use crate::history::now;
use crate::pace::Pace;
use crate::role::{Part, Role};

const PROCESSES: u64 = 8;
/// Of each process.
const TASKS: usize = 2;
/// At a time. After some seconds the processes go on to new names: a checker wants short histories.
const NAMES: u32 = 5;
const SECONDS_OF_NAMES: u64 = 2;
const TTL: Duration = Duration::from_millis(300);
const MAX_PAUSE: Duration = Duration::from_millis(900);
/// How long a history takes without the library.
const BROKEN: Duration = Duration::from_secs(2);
/// The most histories of a broken variant, until the checker refuses one.
const MAX_BROKEN: usize = 10;
/// The fewest grants between two strikes.
const BETWEEN_STRIKES: usize = 3;
/// The fewest operations of a second at work.
const LEAST: usize = 10_000usize.div_ceil(60);

/// What the processes of a history work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Means {
    Library,
    /// The library, with read/write locks and semaphores.
    Permits,
    Raw(Variant),
    RawPermits(Flaw),
}

/// Plays the part of one process. `number` is its own.
pub(crate) async fn work(role: &Role, number: u64, means: Means) {
    match means {
        Means::Library | Means::Permits => worker::work(role, number, means).await,
        Means::Raw(variant) => raw::work(role, number, variant).await,
        Means::RawPermits(flaw) => raw_permit::work(role, number, flaw).await,
    }
}

/// One of the names that all processes use now.
fn a_name() -> String {
    let generation = now().as_secs() / SECONDS_OF_NAMES;
    format!("{generation}:{}", rand::rng().random_range(0..NAMES))
}

/// The fewest operations of a history that takes so long.
fn least(time: Duration) -> usize {
    LEAST * usize::try_from(time.as_secs()).unwrap()
}

/// The library on an engine, with kills and pauses: leases.
pub(crate) async fn run(engine: Engine) {
    judged::<Lease>("histories", engine, Means::Library).await;
}

/// Read/write locks and semaphores.
pub(crate) async fn permits(engine: Engine) {
    let counts = judged::<Permits>("permit_histories", engine, Means::Permits).await;
    assert!(counts.downgrades > 0 && counts.upgrades > 0, "{counts:?}");
}

async fn judged<P: Primitive>(trial: &str, engine: Engine, means: Means) -> Counts {
    let db = Db::new(engine).await;
    drop(db.rowlock().await);
    let time = Duration::from_secs(seconds());
    let history = Traffic::start(&db, means).run(time).await;
    let waited = history.waited;
    let verdict = judge::<P>(history.events.iter().cloned());
    let (counts, took) = verdict.unwrap_or_else(|refusal| {
        let file = keep(trial, engine, &history.events);
        panic!("{refusal}\nThe whole history is in {}", file.display())
    });
    println!(
        "{trial} {engine}: {} s, {} kills, {} pauses; {counts}; seen in a queue: {waited}; accepted in {} ms",
        time.as_secs(),
        history.kills,
        history.pauses,
        took.as_millis()
    );
    assert!(counts.operations >= least(time), "{counts:?}");
    assert!(counts.ends > 0 && counts.open > 0, "{counts:?}");
    assert!(waited.granted > 0 && waited.open > 0, "{waited}");
    db.remove().await;
    counts
}

/// Keeps a history that was refused: no seed brings it back, because the kernel's schedule is part of it.
fn keep(trial: &str, engine: Engine, events: &[Event]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("{trial}_{engine}_{}", std::process::id()));
    let lines: Vec<String> = events.iter().map(Event::to_string).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    file
}

/// Leases without the library: the checker accepts the sound variant, and refuses the broken ones.
pub(crate) async fn raw(variant: Variant) {
    let is_sound = matches!(variant, Variant::Sound | Variant::Queue);
    let what = format!("{variant:?} leases");
    let waited = without_the_library::<Lease>(Means::Raw(variant), is_sound, &what).await;
    if matches!(variant, Variant::Queue | Variant::Stale) {
        assert!(waited.granted > 0, "{waited}");
        println!("{what}, seen in a queue: {waited}");
    }
}

/// Permits without the library.
pub(crate) async fn raw_permits(flaw: Flaw) {
    let (is_sound, what) = (flaw == Flaw::Nothing, format!("Permits ({flaw:?})"));
    without_the_library::<Permits>(Means::RawPermits(flaw), is_sound, &what).await;
}

/// A broken variant is refused as soon as its flaw shows, which takes processes that meet: on a slow machine that may
/// take more histories.
async fn without_the_library<P: Primitive>(means: Means, is_sound: bool, what: &str) -> Outcomes {
    for _ in 0..MAX_BROKEN {
        let db = Db::new(Engine::Sqlite).await;
        drop(db.rowlock().await);
        let history = Traffic::start(&db, means).run(BROKEN).await;
        db.remove().await;
        match judge::<P>(history.events) {
            Ok((counts, _)) => {
                assert!(counts.operations >= least(BROKEN), "{counts:?}");
                println!("{what} without the library were accepted: {counts}");
                if is_sound {
                    return history.waited;
                }
            }
            Err(refusal) => {
                assert!(!is_sound, "{refusal}");
                println!("{what} were refused: {refusal}");
                return history.waited;
            }
        }
    }
    panic!("{what} were accepted, {MAX_BROKEN} times");
}

/// What the records of a name mean to a model.
trait Primitive: Model {
    fn operations(
        records: &[Record],
        ttl: Duration,
        counts: &mut Counts,
    ) -> Vec<Operation<Self::Op>>;
}

/// What the history has in it, and how long the checker took.
fn judge<P: Primitive>(
    events: impl IntoIterator<Item = Event>,
) -> Result<(Counts, Duration), String> {
    let mut counts = Counts::default();
    let mut of_name = |(name, records): (String, Vec<Record>)| {
        counts.take_in(&records);
        let operations = P::operations(&records, TTL, &mut counts);
        (name, operations)
    };
    let operations = records(events).into_iter().map(&mut of_name).collect();
    let took = checker::check::<P>(operations)?;
    Ok((counts, took))
}

/// Processes at work, and what they have told.
struct Traffic<'a> {
    db: &'a Db,
    crew: Crew<Event>,
    /// How many processes were started. The role of the next one has this number.
    started: u64,
    role: Box<dyn Fn(u64) -> Role>,
    has_strikes: bool,
    has_queues: bool,
    /// How many operations have begun, and how many were granted something.
    asked: usize,
    granted: usize,
    events: Vec<Event>,
}

/// What is left of them.
struct Past {
    events: Vec<Event>,
    /// What became of the acquires that were seen in a queue.
    waited: Outcomes,
    kills: u32,
    pauses: u32,
}

impl<'a> Traffic<'a> {
    fn start(db: &'a Db, means: Means) -> Self {
        let url = db.url.clone();
        let role = move |number| Role {
            part: Part::Histories { number, means },
            url: url.clone(),
            ttl: TTL,
        };
        Self {
            db,
            crew: Crew::start((0..PROCESSES).map(&role)),
            started: PROCESSES,
            role: Box::new(role),
            has_strikes: matches!(means, Means::Library | Means::Permits),
            has_queues: !matches!(
                means,
                Means::RawPermits(_)
                    | Means::Raw(Variant::Sound | Variant::Blind | Variant::Forgetful)
            ),
            asked: 0,
            granted: 0,
            events: Vec::new(),
        }
    }

    /// Lets them work, and looks at the queues.
    async fn run(mut self, time: Duration) -> Past {
        let (db, seen) = (self.db, RefCell::default());
        tokio::select! {
            () = self.work(time, &seen) => {}
            never = waiters::watch(db, &seen) => match never {},
        }
        self.end(&seen.into_inner())
    }

    /// Processes that use the library are killed or paused every now and then.
    async fn work(&mut self, time: Duration, seen: &RefCell<BTreeSet<u64>>) {
        let started = Instant::now();
        let mut pace = Pace::new(100..300, BETWEEN_STRIKES);
        // A slow machine takes longer over a history that proves something.
        while started.elapsed() < time
            || !self.is_enough(time, seen) && started.elapsed() < patience()
        {
            self.take_in();
            self.crew.wake();
            if self.has_strikes
                && pace.is_due(self.granted)
                && let Some(slot) = self.crew.strike(MAX_PAUSE)
            {
                self.crew.replace(slot, &(self.role)(self.started));
                self.started += 1;
            }
            // The pace of the loop, which looks at clocks: strikes and the ends of pauses have a time, and no event.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// There were enough operations, and of the waiters some were granted the name and some were cut off.
    fn is_enough(&self, time: Duration, seen: &RefCell<BTreeSet<u64>>) -> bool {
        let waited = Outcomes::of(&seen.borrow(), &self.events);
        self.asked >= least(time)
            && (waited.granted > 0 || !self.has_queues)
            && (waited.open > 0 || !self.has_strikes)
    }

    fn take_in(&mut self) {
        while let Some((_, event)) = self.crew.next_event() {
            self.asked += usize::from(matches!(event, Event::Asked { .. }));
            self.granted += usize::from(event.is_grant());
            self.events.push(event);
        }
    }

    fn end(self, seen: &BTreeSet<u64>) -> Past {
        let (kills, pauses) = (self.crew.kills, self.crew.pauses);
        let mut events = self.events;
        events.extend(self.crew.end());
        Past {
            waited: Outcomes::of(seen, &events),
            events,
            kills,
            pauses,
        }
    }
}
