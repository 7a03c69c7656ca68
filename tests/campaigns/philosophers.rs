//! Dining philosophers (E. W. Dijkstra, EWD 310) over 5 processes. With single locks and named owners, each deadlock
//! is reported to one of them within two seconds, and dinner goes on. With multi-locks there is none.

use std::str::FromStr;
use std::time::{Duration, Instant};

use rowlock::{Engine, Error};
use rowlock_test::{Crew, Db, loss, patience, tell};

use crate::history::now;
use crate::role::{Part, Role};

const SEATS: usize = 5;
/// How many deadlocks have to come, and how often all of them have to eat without one.
const DEADLOCKS: usize = 3;
const MEALS: usize = 10;
/// No deadlock ends because a lease or a session does.
const TTL: Duration = Duration::from_mins(30);

/// What a philosopher tells.
enum Event {
    Ate,
    /// His wait was reported as a deadlock, after so long, in a circle of so many.
    Deadlock {
        waited: Duration,
        circle: usize,
    },
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse().ok();
        match (number(), number()) {
            (Some(0), _) => Ok(Self::Ate),
            (Some(circle), Some(waited)) => Ok(Self::Deadlock {
                waited: Duration::from_millis(waited),
                circle: usize::try_from(circle).map_err(|e| e.to_string())?,
            }),
            _ => Err(format!("not an event: {line:?}")),
        }
    }
}

fn fork(seat: usize) -> String {
    format!("fork {}", seat % SEATS)
}

/// All take their first fork in the same moment of the host's clock.
async fn sits_down() {
    const COURSE: u64 = 200;
    let millis = u64::try_from(now().as_millis()).unwrap();
    tokio::time::sleep(Duration::from_millis(COURSE - millis % COURSE)).await;
}

/// Plays a philosopher.
pub(crate) async fn dine(role: &Role, seat: usize, is_multi: bool) {
    let rowlock = role.connect().await;
    let owner = rowlock.owner().named(format!("philosopher {seat}"));
    let lock = |seat| rowlock.lock(fork(seat)).ttl(role.ttl).owner(&owner);
    loop {
        sits_down().await;
        if is_multi {
            let forks = rowlock.multi_lock([fork(seat), fork(seat + 1)]);
            let held = forks.ttl(role.ttl).acquire().await.unwrap();
            tell("0 0");
            let _ = loss(held.release().await);
            continue;
        }
        let left = lock(seat).acquire().await.unwrap();
        sits_down().await;
        let began = Instant::now();
        match lock(seat + 1).acquire().await {
            Ok(right) => {
                tell("0 0");
                let _ = loss(right.release().await);
            }
            Err(Error::Deadlock { cycle, .. }) => {
                tell(format_args!(
                    "{} {}",
                    cycle.len(),
                    began.elapsed().as_millis()
                ));
            }
            Err(error) => panic!("{error}"),
        }
        let _ = loss(left.release().await);
    }
}

pub(crate) async fn run(engine: Engine, is_multi: bool) {
    let db = Db::new(engine).await;
    drop(db.rowlock().await);
    let role = |seat| Role {
        part: Part::Philosopher { seat, is_multi },
        url: db.url.clone(),
        ttl: TTL,
    };
    let mut crew = Crew::start((0..SEATS).map(role));
    let started = Instant::now();
    let (mut deadlocks, mut meals) = (Vec::new(), [0; SEATS]);
    let enough = |deadlocks: &[Duration], meals: &[usize; SEATS]| {
        let meals = meals
            .iter()
            .all(|meals| *meals >= if is_multi { MEALS } else { 1 });
        meals && (is_multi || deadlocks.len() >= DEADLOCKS)
    };
    while !enough(&deadlocks, &meals) {
        assert!(
            started.elapsed() < patience(),
            "{deadlocks:?} deadlocks, {meals:?} meals"
        );
        crew.wake();
        match crew.next_event() {
            Some((slot, Event::Ate)) => meals[slot.expect("nobody was replaced")] += 1,
            Some((_, Event::Deadlock { waited, circle })) => {
                assert!(!is_multi && circle == SEATS, "a circle of {circle}");
                deadlocks.push(waited);
            }
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    println!(
        "philosophers {engine}: {} deadlocks, reported after {:?} at the latest; {meals:?} meals",
        deadlocks.len(),
        deadlocks.iter().max().unwrap_or(&Duration::ZERO)
    );
    drop(crew);
    db.remove().await;
}
