//! Five candidates of one election. The leader is killed with SIGKILL, or paused with SIGSTOP for longer than its TTL,
//! again and again. Each leader acts many times a second: it writes its term and the database's clock, in a
//! transaction that pins its leadership. The [`judge`] looks at all acts afterwards. `ROWLOCK_FAULT_SECONDS` is how
//! long.
//!
//! - [`candidate`]: one candidate.
//! - [`candidates`]: the processes, and the strikes.
//! - [`judge`]: what must be true of the acts.
//! - [`pulse`]: what the machine itself takes for a write.

mod candidate;
mod candidates;
mod judge;
mod pulse;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use candidate::{Means, stand};
use candidates::Candidates;
pub(crate) use judge::the_judge_sees_violations;
use judge::{Act, Seen, judge, terms};
use pulse::Pulse;
use rand::Rng;
use rowlock::Engine;
use rowlock_recipes::leader::{Change, Election};
use rowlock_test::{Db, on_app, patience};
use tokio::sync::mpsc;

use crate::campaign::seconds;

const NAME: &str = "leader";
const PROCESSES: usize = 5;
const TTL: Duration = Duration::from_secs(1);
/// How long after the TTL of a struck leader another one must have acted.
const SLACK: Duration = Duration::from_secs(1);

/// How many steps, each of which may stand still, are on the way from a strike to the act of another leader.
const STEPS: u32 = 10;

/// A strike against the leader of a term, and the failover after it.
#[derive(Debug)]
struct Failover {
    term: i64,
    is_kill: bool,
    /// From the strike to the first act of another leader, by the database's clock.
    time: Duration,
    /// The paused process had SQLite's file: nobody could write before it went on, and the time counts from then.
    had_file: bool,
    /// The longest that a lone write to another database took meanwhile.
    stall: Duration,
}

impl Failover {
    /// The machine stood still for so long that the election could not go on in time. (Other work on its processors or
    /// its disk does that.)
    fn is_disturbed(&self) -> bool {
        self.stall > SLACK / 2
    }
}

async fn prepare(engine: Engine) -> Db {
    let db = Db::new(engine).await;
    let columns = "term BIGINT NOT NULL, candidate BIGINT NOT NULL, at BIGINT NOT NULL";
    db.execute(&format!("CREATE TABLE act ({columns})")).await;
    db
}

/// All acts, in the order of the database's clock.
async fn acts(db: &Db) -> Vec<Act> {
    let all = "SELECT term, candidate, at FROM act ORDER BY at, term";
    let rows: Vec<(i64, i64, i64)> = on_app!(&db.app, pool => {
        sqlx::query_as(all).fetch_all(pool).await.unwrap()
    });
    rows.into_iter().map(Act::from).collect()
}

async fn clock(db: &Db) -> i64 {
    db.number(&format!("SELECT {}", db.kind.micros)).await
}

async fn last_term(db: &Db) -> i64 {
    db.number("SELECT COALESCE(MAX(term), 0) FROM act").await
}

/// Waits for an act in a later term than `term`. Returns the time of the first one.
async fn succession(db: &Db, candidates: &mut Candidates, term: i64) -> i64 {
    let since = Instant::now();
    while last_term(db).await <= term {
        assert!(
            since.elapsed() < patience(),
            "nobody leads after term {term}"
        );
        candidates.wake(Instant::now());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let first = format!("SELECT MIN(at) FROM act WHERE term > {term}");
    db.number(&first).await
}

pub(crate) async fn run(engine: Engine) {
    let db = prepare(engine).await;
    let watcher = db.rowlock().await;
    let lone = Arc::new(Db::new(engine).await);
    let pulse = Pulse::start(Arc::clone(&lone)).await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let election = Election::new(&watcher, NAME);
    let observer = election.observer();
    let mut observer = observer.interval(Duration::from_millis(20));
    let observing = tokio::spawn(async move {
        loop {
            match observer.next().await {
                Ok(Change::Leads(leader)) => tell.send(Seen::from(leader)).unwrap(),
                Ok(Change::Vacant) => {}
                Err(error) => eprintln!("leaders: {error}"),
            }
        }
    });
    let mut candidates = Candidates::start(&db, Means::Pinned);
    let mut failovers = Vec::new();
    let until = Instant::now() + Duration::from_secs(seconds());
    succession(&db, &mut candidates, 0).await;
    while Instant::now() < until {
        // Work that the leader does before it is struck.
        let work = rand::rng().random_range(0..700);
        tokio::time::sleep(Duration::from_millis(work)).await;
        candidates.wake(Instant::now());
        failovers.extend(strike(&db, (&election, &pulse), &mut candidates).await);
    }
    observing.abort();
    pulse.stop().await;
    let lone = Arc::into_inner(lone).expect("its task has ended");
    lone.remove().await;
    let (kills, pauses) = (candidates.kills, candidates.pauses);
    drop(candidates);
    let mut seen = Vec::new();
    told.close();
    while let Some(leader) = told.recv().await {
        seen.push(leader);
    }
    let acts = acts(&db).await;
    let verdict = judge(&acts, &seen).unwrap_or_else(|flaw| panic!("{engine}: {flaw}"));
    assert!(!failovers.is_empty() && verdict > failovers.len());
    let worst = |is_kill| {
        let times = failovers.iter().filter(|one| !one.is_disturbed());
        let worst = times
            .filter(|one| one.is_kill == is_kill)
            .map(|one| one.time)
            .max();
        worst.map_or_else(|| "-".into(), |time| format!("{} ms", time.as_millis()))
    };
    println!(
        "leaders {engine}: {} s, {kills} kills, {pauses} pauses of a leader; {} acts in {} terms, {} of them seen by the observer; \
         the slowest successor acted {} after a kill and {} after a pause (TTL {} ms); {} paused leaders had the file; \
         {} failovers are not counted, because the machine stood still (for {} ms at most)",
        seconds(),
        acts.len(),
        verdict,
        seen.len(),
        worst(true),
        worst(false),
        TTL.as_millis(),
        failovers.iter().filter(|one| one.had_file).count(),
        failovers.iter().filter(|one| one.is_disturbed()).count(),
        failovers
            .iter()
            .map(|one| one.stall.as_millis())
            .max()
            .unwrap_or_default(),
    );
    for failover in failovers.iter().filter(|one| !one.is_disturbed()) {
        let since = failover.term;
        assert!(
            failover.time <= TTL + SLACK + STEPS * failover.stall,
            "{failover:?}; seen: {:?}; acted: {:?}",
            seen.iter()
                .filter(|leader| leader.term >= since)
                .take(5)
                .collect::<Vec<_>>(),
            terms(&acts).range(since..).take(5).collect::<Vec<_>>(),
        );
    }
    db.remove().await;
}

/// Kills or pauses the leader, and waits for its successor. `None`: it did not lead any more when it was struck, or no
/// other candidate was awake (the one that replaces a killed one does not count).
async fn strike(
    db: &Db,
    (election, pulse): (&Election, &Pulse),
    candidates: &mut Candidates,
) -> Option<Failover> {
    let term = last_term(db).await;
    let leader = format!("SELECT MAX(candidate) FROM act WHERE term = {term}");
    let leader = db.number(&leader).await;
    let before = clock(db).await;
    pulse.longest();
    let is_kill = rand::rng().random_bool(0.5);
    if is_kill {
        candidates.kill(leader)?;
    } else {
        candidates.pause(leader)?;
    }
    let others = candidates.awake() - usize::from(is_kill);
    // Nothing ended its term before the strike.
    let leads = election.observe().await.unwrap();
    let led = leads.is_some_and(|leads| leads.term == term);
    let (mut from, mut had_file) = (before, false);
    if !is_kill && db.one_writer() && has_file(db).await {
        had_file = true;
        let wakes = candidates.next_wake().expect("one is paused");
        tokio::time::sleep_until(wakes.into()).await;
        from = clock(db).await;
        candidates.wake(wakes);
    }
    let first = succession(db, candidates, term).await;
    let time = Duration::from_micros(u64::try_from(first - from).unwrap_or_default());
    (others > 0 && led).then_some(Failover {
        term,
        is_kill,
        time,
        had_file,
        stall: pulse.longest(),
    })
}

/// Whether a paused process has SQLite's file: it is locked for half a TTL.
async fn has_file(db: &Db) -> bool {
    let since = Instant::now();
    while since.elapsed() < TTL / 2 {
        if db.open_transactions().await == 0 {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

/// Leaders that look at their deadline before they act, and do not pin: a paused one acts in the next leader's term,
/// and the judge sees it.
pub(crate) async fn without_a_pin(engine: Engine) {
    let db = prepare(engine).await;
    let mut candidates = Candidates::start(&db, Means::Checked);
    let since = Instant::now();
    let mut term = 0;
    let flaw = loop {
        succession(&db, &mut candidates, term).await;
        if let Err(flaw) = judge(&acts(&db).await, &[]) {
            break flaw;
        }
        assert!(since.elapsed() < patience(), "the judge sees nothing");
        term = last_term(&db).await;
        let leader = format!("SELECT MAX(candidate) FROM act WHERE term = {term}");
        candidates.pause(db.number(&leader).await);
    };
    println!(
        "leaders {engine} without a pin: after {} pauses: {flaw}",
        candidates.pauses
    );
    drop(candidates);
    db.remove().await;
}
