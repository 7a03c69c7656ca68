//! Promise 6 over processes: 4 processes with 50 waiters each queue for one name. They have their turns in the order
//! of their positions, also when some of them are killed (SIGKILL), are cancelled or give up.
//!
//! Each turn is a row that only the lock protects: its number is the count of the rows before it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rowlock::{Engine, Error, Held, Rowlock};
use rowlock_test::{
    App, Db, Process, eventually, listen, on_app, patience, release, take, tell, waiters,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::role::{Part, Role};

pub(crate) const NAME: &str = "a";
const PROCESSES: usize = 4;
const WAITERS: usize = 50;
/// So many waiters of a process join at a time. Then it is the next process's turn.
const GROUP: usize = 10;
/// The TTL of a session, and of a lease.
const TTL: Duration = Duration::from_mins(30);
/// How long a waiter waits that gives up, before the first turn.
const PATIENCE: Duration = Duration::from_secs(1);
/// After so many turns, those waiters leave that leave while the queue moves.
const TURNS: i64 = 28;
/// The waiter that has its turn when its process is killed.
const STUCK: usize = 25;

/// What the waiters of a process do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Plan {
    Stay,
    SomeLeave,
    /// The turn of waiter [`STUCK`] never ends.
    OneIsStuck,
}

/// When a waiter leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    Never,
    /// It gives up before the first turn.
    GivesUp,
    /// It is cancelled before the first turn.
    Early,
    /// It is cancelled while others have their turns, and perhaps when it has its own.
    Late,
}

impl Leaves {
    /// In a process in which some waiters leave.
    fn of(number: usize) -> Self {
        match number % 18 {
            3 => Self::GivesUp,
            9 => Self::Early,
            15 => Self::Late,
            _ => Self::Never,
        }
    }
}

/// What the waiters of a process have been told.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    /// So many groups may join.
    groups: usize,
    early_leave: bool,
    late_leave: bool,
}

/// A process with waiters. At each line `join`, a group of them joins. At the line `leave`, the first ones leave.
pub(crate) async fn wait(role: &Role, process: usize, waiters: usize, plan: Plan) {
    let rowlock = role.connect().await;
    let app = App::connect(&role.url, 1).await;
    let told = Arc::new(watch::channel(Told::default()).0);
    let mut tasks = JoinSet::new();
    for number in 0..waiters {
        let leaves = match plan {
            Plan::SomeLeave => Leaves::of(number),
            Plan::Stay | Plan::OneIsStuck => Leaves::Never,
        };
        let holder = format!("{process}:{number}");
        let lock = rowlock.lock(NAME).ttl(role.ttl).holder(holder.as_str());
        let lock = if leaves == Leaves::GivesUp {
            lock.wait(PATIENCE)
        } else {
            lock
        };
        let (app, told) = (app.clone(), Arc::clone(&told));
        tasks.spawn(async move {
            let mut hears = told.subscribe();
            let joins = hears.wait_for(|told| told.groups > number / GROUP).await;
            drop(joins.unwrap());
            let leaves = hears.wait_for(|told| match leaves {
                Leaves::Early => told.early_leave,
                Leaves::Late => told.late_leave,
                Leaves::Never | Leaves::GivesUp => false,
            });
            let acquired = tokio::select! {
                acquired = lock.acquire() => acquired,
                _ = leaves => return tell(format!("left {holder}")),
                () = tokio::time::sleep(patience()) => return tell(format!("lost {holder}")),
            };
            match acquired {
                Ok(held) => {
                    let turns = have_a_turn(&app, &held, &holder).await;
                    if plan == Plan::OneIsStuck && number == STUCK {
                        tell("stuck");
                        std::future::pending::<()>().await;
                    }
                    release(&held).await;
                    tell(format!("had {holder}"));
                    if turns >= TURNS {
                        told.send_modify(|told| told.late_leave = true);
                    }
                }
                Err(Error::WaitTimeout { .. }) => tell(format!("left {holder}")),
                Err(error) => panic!("{error}"),
            }
        });
    }
    // A thread that waits for a line does not keep the process.
    std::thread::spawn(move || {
        while let Some(line) = listen() {
            told.send_modify(|told| match line.as_str() {
                "join" => told.groups += 1,
                "leave" => told.early_leave = true,
                line => panic!("{line}"),
            });
        }
    });
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    rowlock.flush().await;
    tell("done");
}

/// Adds the row of this turn. Returns how many rows there were.
async fn have_a_turn(app: &App, held: &Held, holder: &str) -> i64 {
    let n = app.number("SELECT COUNT(*) FROM turn").await;
    let mut tx = app.begin().await;
    tx.pin(held).await.unwrap();
    let fence = held.fence();
    let turn = format!("INSERT INTO turn (n, fence, holder) VALUES ({n}, {fence}, '{holder}')");
    tx.execute(&turn).await.unwrap();
    tx.commit().await.unwrap();
    n
}

/// A database in which processes can have turns.
pub(crate) async fn database(engine: Engine) -> (Db, Rowlock) {
    let db = Db::new(engine).await;
    let rowlock = db.rowlock().await;
    db.execute(
        "CREATE TABLE turn (n BIGINT NOT NULL PRIMARY KEY, fence BIGINT NOT NULL, holder VARCHAR(64) NOT NULL)",
    )
    .await;
    (db, rowlock)
}

/// A process with waiters, which have not joined yet.
pub(crate) fn start(db: &Db, ttl: Duration, part: (usize, usize, Plan)) -> Process {
    let (process, waiters, plan) = part;
    Process::start(&Role {
        part: Part::Queue {
            process,
            waiters,
            plan,
        },
        url: db.url.clone(),
        ttl,
    })
}

/// A process whose waiters join in no order.
pub(crate) fn start_at_once(db: &Db, ttl: Duration, process: usize, waiters: usize) -> Process {
    let mut started = start(db, ttl, (process, waiters, Plan::Stay));
    for _ in 0..waiters.div_ceil(GROUP) {
        started.tell("join");
    }
    started
}

/// All waiters join, a group of each process after a group of another one. Returns their positions, by their holders.
async fn join_in_groups<'a>(
    db: &Db,
    rowlock: &Rowlock,
    processes: impl IntoIterator<Item = &'a mut Process>,
) -> HashMap<String, i64> {
    let mut processes: Vec<_> = processes.into_iter().collect();
    let mut joined = 0;
    for _ in 0..WAITERS / GROUP {
        for process in &mut processes {
            process.tell("join");
            joined += i64::try_from(GROUP).unwrap();
            eventually("the group has joined", async || {
                db.number("SELECT next_position FROM rowlock_lock").await > joined
            })
            .await;
        }
    }
    let waiters = waiters(rowlock, NAME).await.into_iter();
    waiters.map(|info| (info.holder, info.position)).collect()
}

/// Those who waited or held in a process that was killed are seen to be gone, as if the TTL were over.
pub(crate) async fn ends_soon(db: &Db, process: usize) {
    let (soon, of) = (db.soon(), format!("holder LIKE '{process}:%'"));
    let sessions = format!(
        "UPDATE rowlock_session SET expires_at = {soon} WHERE id IN (SELECT session_id FROM rowlock_waiter WHERE {of})"
    );
    assert_eq!(db.execute(&sessions).await, 1);
    let leases = format!("UPDATE rowlock_lock SET expires_at = {soon} WHERE {of}");
    db.execute(&leases).await;
}

/// How many turns there were.
pub(crate) async fn turns(db: &Db) -> i64 {
    db.number("SELECT COUNT(*) FROM turn").await
}

/// The holders of all turns, in their order. Their fences rise.
pub(crate) async fn holders(db: &Db) -> Vec<String> {
    let rows: Vec<(i64, i64, String)> = on_app!(&db.app, pool => {
        sqlx::query_as("SELECT n, fence, holder FROM turn ORDER BY n").fetch_all(pool).await.unwrap()
    });
    for (row, n) in rows.iter().zip(0..) {
        assert_eq!(row.0, n, "{rows:?}");
    }
    assert!(rows.is_sorted_by(|a, b| a.1 < b.1), "{rows:?}");
    rows.into_iter().map(|(.., holder)| holder).collect()
}

/// Each turn was that of the waiter with the next position.
fn check_order(holders: &[String], positions: &HashMap<String, i64>) {
    let in_order = |a: &String, b: &String| positions[a] < positions[b];
    for pair in holders.windows(2) {
        let [a, b] = pair else { unreachable!() };
        assert!(
            in_order(a, b),
            "{a} at {}, then {b} at {}",
            positions[a],
            positions[b]
        );
    }
}

pub(crate) async fn in_order(engine: Engine) {
    let (db, rowlock) = database(engine).await;
    let held = take(&rowlock, NAME, TTL).await;
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|process| start(&db, TTL, (process, WAITERS, Plan::Stay)))
        .collect();
    let all = PROCESSES * WAITERS;
    let positions = join_in_groups(&db, &rowlock, &mut processes).await;
    assert_eq!(positions.len(), all);
    release(&held).await;
    let mut had = 0;
    for process in &mut processes {
        let lines = process.rest();
        had += lines.iter().filter(|line| line.starts_with("had ")).count();
        assert_eq!(lines.last().map(String::as_str), Some("done"), "{lines:?}");
        assert_eq!(lines.len(), WAITERS + 1, "{lines:?}");
    }
    assert_eq!(had, all);
    let holders = holders(&db).await;
    assert_eq!(holders.len(), all);
    check_order(&holders, &positions);
    nothing_is_left(&db, &rowlock).await;
    println!("queue {engine}: {all} waiters of {PROCESSES} processes had their turns in order");
    db.remove().await;
}

pub(crate) async fn with_losses(engine: Engine) {
    let (db, rowlock) = database(engine).await;
    let held = take(&rowlock, NAME, TTL).await;
    let last = PROCESSES - 1;
    let mut killed = start(&db, TTL, (last, WAITERS, Plan::OneIsStuck));
    let mut processes: Vec<_> = (0..last)
        .map(|process| start(&db, TTL, (process, WAITERS, Plan::SomeLeave)))
        .collect();
    let all = processes.iter_mut().chain([&mut killed]);
    let positions = join_in_groups(&db, &rowlock, all).await;
    for process in &mut processes {
        process.tell("leave");
    }
    let early = |number: &usize| {
        let leaves = Leaves::of(*number);
        leaves == Leaves::GivesUp || leaves == Leaves::Early
    };
    let early = (0..WAITERS).filter(early).count();
    let stay = PROCESSES * WAITERS - last * early;
    eventually("the first ones have left", async || {
        waiters(&rowlock, NAME).await.len() == stay
    })
    .await;
    release(&held).await;
    while killed.listen() != "stuck" {}
    killed.kill();
    ends_soon(&db, last).await;

    let (mut had, mut left) = (HashSet::new(), 0);
    for (number, process) in processes.iter_mut().enumerate() {
        let lines = process.rest();
        assert_eq!(lines.last().map(String::as_str), Some("done"), "{lines:?}");
        assert_eq!(lines.len(), WAITERS + 1, "{lines:?}");
        let told: HashSet<&str> = lines.iter().map(String::as_str).collect();
        for waiter in 0..WAITERS {
            let holder = format!("{number}:{waiter}");
            let has_left = told.contains(format!("left {holder}").as_str());
            let has_had = told.contains(format!("had {holder}").as_str());
            assert!(has_left != has_had, "{holder}: {lines:?}");
            match Leaves::of(waiter) {
                Leaves::Never => assert!(has_had, "{holder} has left"),
                Leaves::Early | Leaves::GivesUp => assert!(has_left, "{holder} had a turn"),
                Leaves::Late => {}
            }
            left += usize::from(has_left);
            if has_had {
                had.insert(holder);
            }
        }
    }
    let holders = holders(&db).await;
    let of_killed = format!("{last}:");
    let (dead, live): (Vec<_>, Vec<_>) = holders
        .iter()
        .cloned()
        .partition(|holder| holder.starts_with(&of_killed));
    assert_eq!(live.len(), had.len(), "no turn twice: {live:?}");
    assert_eq!(live.into_iter().collect::<HashSet<_>>(), had);
    check_order(&holders, &positions);
    nothing_is_left(&db, &rowlock).await;
    let stuck = format!("{last}:{STUCK}");
    assert_eq!(dead.last(), Some(&stuck), "the dead have no turns");
    let died = WAITERS - dead.len();
    assert!(died > 0, "the process had waiters when it was killed");
    println!(
        "queue with losses {engine}: {died} waiters were killed, {left} left; the others had {} turns in order",
        holders.len()
    );
    db.remove().await;
}

/// Nobody waits, and the name is free as soon as nobody can be granted it any more that is dead.
async fn nothing_is_left(db: &Db, rowlock: &Rowlock) {
    eventually("the name is free", async || {
        let asked = rowlock.lock(NAME).try_acquire().await.unwrap();
        asked.is_some()
    })
    .await;
    assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_waiter").await, 0);
}
