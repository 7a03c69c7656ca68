//! A lock over five databases of four engines: six processes that are killed and paused, and up to two databases at a
//! time that are killed, paused, or lose all their data.
//!
//! - [`databases`]: the databases, and what happens to them.
//! - [`member`]: one process, which takes the lock and tells when its guard says that it is held.

mod databases;
mod member;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use databases::{Databases, Wiped};
pub(crate) use member::work;
use rand::Rng;

use crate::campaign::seconds;
use crate::history::{Event, History, now, the_checker_sees_violations};
use crate::role::{Part, Role};
use rowlock_test::{Crew, patience};

const PROCESSES: usize = 6;
const TTL: Duration = Duration::from_secs(2);
/// A lease is at least this long where a database loses its data,
const LONG_TTL: Duration = Duration::from_secs(6);
/// and so many times as long as a database takes to lose its data and come back.
const LOSSES_IN_A_TTL: u32 = 8;
/// The longest pause of a process: its lease is over when it wakes.
const MAX_PAUSE: Duration = Duration::from_millis(4_500);

/// A campaign goes on until there were as many: a history of fewer proves little.
const FEWEST_GRANTS: u32 = 12;

/// The processes with their history.
struct Campaign {
    crew: Crew<Event>,
    role: Role,
    history: History,
    grants: u32,
    strike: Instant,
    last_grant: Duration,
    slowest: Duration,
    /// The process that has told last that it has the lock, and not yet that it is done.
    holder: Option<usize>,
}

impl Campaign {
    fn start(databases: &Databases, ttl: Duration) -> Self {
        let role = Role {
            part: Part::Quorum,
            url: databases.urls(),
            ttl,
        };
        Self {
            crew: Crew::start(std::iter::repeat_n(role.clone(), PROCESSES)),
            role,
            history: History::default(),
            grants: 0,
            strike: Instant::now() + Duration::from_secs(1),
            last_grant: now(),
            slowest: Duration::ZERO,
            holder: None,
        }
    }

    /// Takes in what the processes have told, and strikes one of them when it is time.
    async fn step(&mut self) {
        while let Some((slot, event)) = self.crew.next_event() {
            match event {
                Event::Granted { .. } => self.holder = slot,
                Event::Done { .. } => self.holder = None,
                Event::Write { .. } => {}
            }
            self.take_in(event);
        }
        self.crew.wake();
        if self.strike <= Instant::now() {
            self.strike += Duration::from_millis(rand::rng().random_range(300..700));
            if let Some(slot) = self.crew.strike(MAX_PAUSE) {
                self.crew.replace(slot, &self.role);
            }
        }
        // The pace of the loop, which looks at clocks: strikes and the ends of pauses have a time, and no event.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    /// Goes on for this time.
    async fn go_on(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.step().await;
        }
    }

    /// What the checker says, if it refuses the history.
    fn overlap(&self) -> Option<String> {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let judged = catch_unwind(AssertUnwindSafe(|| self.history.check()));
        std::panic::set_hook(hook);
        let said = judged.err()?;
        Some(said.downcast_ref::<String>().cloned().unwrap_or_default())
    }

    fn take_in(&mut self, event: Event) {
        if let Event::Granted { at, .. } = &event {
            self.grants += 1;
            self.slowest = self.slowest.max(at.saturating_sub(self.last_grant));
            self.last_grant = self.last_grant.max(*at);
        }
        self.history.record(event);
    }

    /// Ends the processes.
    fn end(self) -> (History, Duration, u32, u32) {
        let (kills, pauses) = (self.crew.kills, self.crew.pauses);
        let mut history = self.history;
        for event in self.crew.end() {
            history.record(event);
        }
        (history, self.slowest, kills, pauses)
    }
}

/// At most two databases are away at a time, and one that has lost its data is in quarantine: no two guards say that
/// the lock is held, and it can be acquired.
pub(crate) async fn run() {
    the_checker_sees_violations();
    let mut databases = Databases::start().await;
    let mut campaign = Campaign::start(&databases, TTL);
    // Until the first processes have connected.
    while campaign.history.is_empty() {
        campaign.step().await;
    }
    let start = Instant::now();
    let until = start + Duration::from_secs(seconds());
    campaign.last_grant = now();
    let mut strike = Instant::now();
    while Instant::now() < until || campaign.grants < FEWEST_GRANTS {
        campaign.step().await;
        if strike <= Instant::now() {
            strike += Duration::from_millis(rand::rng().random_range(300..1_500));
            databases.strike_one(Wiped::InQuarantine);
        }
        databases.settle();
        let gap = now().saturating_sub(campaign.last_grant);
        assert!(
            gap < patience(),
            "nobody was granted the lock for {gap:?}, with {} databases there",
            databases.there()
        );
    }
    let took = start.elapsed().as_secs();
    let struck = databases.end().await;
    let (history, slowest, kills, pauses) = campaign.end();
    let verdict = history.check();
    assert!(verdict.writes > 10, "{verdict:?}");
    println!(
        "quorum: {took} s, {kills} kills and {pauses} pauses of processes; {struck}; {} grants, {} looks at guards, 0 overlaps, the longest time \
         without a grant was {} ms; {} writes of paused holders came after another grant, and had a smaller fence",
        verdict.grants,
        verdict.writes,
        slowest.as_millis(),
        verdict.overlaps
    );
}

/// A holder has the lock in three databases, and is paused. One of the three forgets it, and the other two databases
/// come back. With the quarantine nobody else is granted the lock while the holder trusts it.
pub(crate) async fn forgotten() {
    let seen = forget(Wiped::InQuarantine, 2).await;
    assert_eq!(seen, None);
}

/// Without the quarantine the same schedule shows two guards at once.
pub(crate) async fn forgotten_without_a_quarantine() {
    let seen = forget(Wiped::Bare, 10).await.expect("an overlap");
    assert!(seen.contains("was still called held"), "{seen}");
}

/// The overlap, if one is seen in so many rounds.
async fn forget(wiped: Wiped, rounds: u32) -> Option<String> {
    let databases = Databases::start().await;
    let start = Instant::now();
    let lost = databases.forget(Vec::new(), Wiped::Bare, LONG_TTL);
    lost.await.unwrap();
    let ttl = LONG_TTL.max(start.elapsed() * LOSSES_IN_A_TTL);
    let mut campaign = Campaign::start(&databases, ttl);
    // Only the holder is struck.
    campaign.strike = Instant::now() + Duration::from_hours(1);
    let (mut seen, mut round) = (None, 0);
    while seen.is_none() && round < rounds {
        round += 1;
        let two = databases.pause_two();
        // The leases that these two have granted run out: every holder has the other three.
        campaign.go_on(ttl + Duration::from_secs(1)).await;
        let holder = loop {
            campaign.step().await;
            if let Some(holder) = campaign.holder {
                break holder;
            }
        };
        // It was granted the lock just now, and goes on when another one has it.
        let trusted = ttl * 3 / 4;
        campaign.crew.pause(holder, trusted);
        let (granted, grants) = (campaign.last_grant, campaign.grants);
        let until = Instant::now() + trusted;
        let forgetting = databases.forget(two, wiped, ttl);
        while campaign.grants == grants && Instant::now() < until {
            campaign.step().await;
        }
        campaign.crew.resume(holder);
        while !forgetting.is_finished() {
            campaign.step().await;
        }
        forgetting.await.unwrap();
        campaign.go_on(ttl).await;
        println!(
            "quorum, round {round}: after the loss ({wiped:?}) the lock was granted {} ms later",
            campaign.last_grant.saturating_sub(granted).as_millis()
        );
        seen = campaign.overlap();
    }
    databases.end().await;
    let (history, ..) = campaign.end();
    assert!(seen.is_some() || history.check().grants > 10);
    println!(
        "quorum: {round} databases came back without their data ({wiped:?}), leases of {} ms; seen: {seen:?}",
        ttl.as_millis()
    );
    seen
}
