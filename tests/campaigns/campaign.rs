//! 8 processes on 3 names, TTL 1 s; every ~100 ms one of them is killed with SIGKILL, or paused with
//! SIGSTOP for up to 3 s. `ROWLOCK_FAULT_SECONDS` is how long. (On a machine that is
//! too slow for enough grants in that time, it takes longer.)

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rowlock::{Engine, Rowlock};
use rowlock_test::{Crew, Db, patience};

use crate::history::{Event, History, the_checker_sees_violations};
use crate::pace::Pace;
use crate::role::{Part, Role};

const PROCESSES: usize = 8;
const TTL: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// More grants, and more writes, than these prove something.
const LEAST: usize = 20;

pub(crate) fn seconds() -> u64 {
    std::env::var("ROWLOCK_FAULT_SECONDS").map_or(5, |text| text.parse().expect("a number"))
}

/// What the process in each slot holds, as far as it has told.
type Holds = [HashMap<String, i64>; PROCESSES];

pub(crate) async fn run(engine: Engine) {
    the_checker_sees_violations();
    let db = Db::new(engine).await;
    let watcher = db.rowlock().await;
    let role = Role {
        part: Part::Campaign,
        url: db.url.clone(),
        ttl: TTL,
    };
    let mut crew = Crew::start(std::iter::repeat_n(role.clone(), PROCESSES));
    let (mut holds, mut history) = (Holds::default(), History::default());
    let mut freed = tokio::task::JoinSet::new();

    let until = Instant::now() + Duration::from_secs(seconds());
    let (mut told, mut pace) = (Counts::default(), Pace::new(60..140, 1));
    while Instant::now() < until || !told.is_enough() && Instant::now() < until + patience() {
        told.add(take_in(&mut crew, &mut holds, &mut history));
        crew.wake();
        if pace.is_due(told.grants)
            && let Some(slot) = crew.strike(MAX_PAUSE)
        {
            let died = Instant::now();
            told.add(take_in(&mut crew, &mut holds, &mut history));
            for (name, fence) in holds[slot].drain() {
                freed.spawn(time_to_be_free(watcher.clone(), name, fence, died));
            }
            crew.replace(slot, &role);
        }
        // The pace of the loop, which looks at clocks: strikes and the ends of pauses have a time, and no event.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (kills, pauses) = (crew.kills, crew.pauses);
    for event in crew.end() {
        history.record(event);
    }
    let (mut deaths, mut slowest) = (0, Duration::ZERO);
    while let Some(time) = freed.join_next().await {
        deaths += 1;
        slowest = slowest.max(time.unwrap());
    }
    let verdict = history.check();
    assert!(
        verdict.grants > LEAST && verdict.writes > LEAST,
        "{verdict:?}"
    );
    println!(
        "campaign {engine}: {} s, {kills} kills, {pauses} pauses; {} grants, {} writes, 0 accepted stale \
         writes, {} refused; {} overlaps by paused holders; {deaths} holders died, the slowest name was \
         free after {} ms",
        seconds(),
        verdict.grants,
        verdict.writes,
        verdict.refused,
        verdict.overlaps,
        slowest.as_millis()
    );
    db.remove().await;
}

/// How many grants and writes were told.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    grants: usize,
    writes: usize,
}

impl Counts {
    fn add(&mut self, more: Self) {
        self.grants += more.grants;
        self.writes += more.writes;
    }

    fn is_enough(self) -> bool {
        self.grants > LEAST && self.writes > LEAST
    }
}

fn take_in(crew: &mut Crew<Event>, holds: &mut Holds, history: &mut History) -> Counts {
    let mut counts = Counts::default();
    while let Some((slot, event)) = crew.next_event() {
        counts.grants += usize::from(matches!(event, Event::Granted { .. }));
        counts.writes += usize::from(matches!(event, Event::Write { .. }));
        if let Some(slot) = slot {
            match &event {
                Event::Granted { name, fence, .. } => {
                    holds[slot].insert(name.clone(), *fence);
                }
                Event::Done { name, .. } => drop(holds[slot].remove(name)),
                Event::Write { .. } => {}
            }
        }
        history.record(event);
    }
    counts
}

/// How long after its holder's death the grant with this fence is still in the row.
async fn time_to_be_free(watcher: Rowlock, name: String, fence: i64, died: Instant) -> Duration {
    let (mut left, mut renewed) = (TTL, 0);
    loop {
        let looked = Instant::now();
        match watcher.inspect(name.as_str()).await {
            // Nobody renews it any more, but for a renewal that was on its way.
            Ok(Some(lock)) if lock.fence == fence => {
                renewed += u32::from(lock.remaining > left);
                assert!(renewed <= 1, "{lock:?}");
                left = lock.remaining;
            }
            Ok(_) => return looked - died,
            Err(error) => eprintln!("fault: {error}"),
        }
        assert!(died.elapsed() < patience(), "{name} is never free");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
