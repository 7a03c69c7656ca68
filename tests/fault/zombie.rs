//! The zombie: a holder is stopped with SIGSTOP between its work and its commit, for longer than its TTL or not;
//! somebody else takes over and writes; the first one wakes and commits.
//!
//! Without the pin its write wipes out the other one's. With it, the late commit is refused. `ROWLOCK_ZOMBIE_ROUNDS`
//! is how often.

use std::time::Duration;

use nix::sys::signal::Signal;
use rand::Rng;
use rowlock::{Engine, Error, Held, Rowlock};
use rowlock_test::{App, Db, Process, listen, loss, patience, tell};
use tokio::task::{JoinHandle, JoinSet};

use crate::role::{Part, Role};

const TTL: Duration = Duration::from_millis(100);
/// Zombies at a time, each with a name of its own. (SQLite: a stopped one may have the whole file.)
const ZOMBIES: u64 = 6;

pub(crate) fn rounds() -> u64 {
    std::env::var("ROWLOCK_ZOMBIE_ROUNDS").map_or(24, |text| text.parse().expect("a number"))
}

/// The process that is stopped. It never asks its guard: only the pin stands between it and a lost update.
pub(crate) async fn hold(role: &Role, pinned: bool) {
    let rowlock = role.connect().await;
    let app = App::connect(&role.url, 1).await;
    // The parent says which row; it is stopped at "worked" or at "written", and goes on at the next line.
    while let Some(id) = listen() {
        let held = rowlock.lock(&id).ttl(role.ttl).acquire().await.unwrap();
        let n = app
            .number(&format!("SELECT n FROM zombie WHERE id = {id}"))
            .await;
        tell("worked");
        listen();
        let result = write(&app, &id, n + 1, pinned.then_some(&held)).await;
        match result {
            Ok(()) => tell("committed"),
            Err(Error::Lost { .. }) => tell("refused"),
            Err(error) => panic!("{error}"),
        }
        drop(held);
    }
}

async fn write(app: &App, id: &str, n: i64, held: Option<&Held>) -> Result<(), Error> {
    let mut tx = app.begin().await;
    tx.execute(&format!("UPDATE zombie SET n = {n} WHERE id = {id}"))
        .await?;
    if let Some(held) = held
        && let Err(error) = tx.pin(held).await
    {
        // Not left to the drop: this process listens for its next line, and runs nothing meanwhile.
        tx.release().await;
        return Err(error);
    }
    tell("written");
    listen();
    Ok(tx.commit().await?)
}

/// What the rounds of one zombie came to.
#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    committed: u64,
    refused: u64,
    taken_over: i64,
    lost: i64,
}

pub(crate) async fn run(engine: Engine) {
    let db = Db::new(engine).await;
    let rowlock = db.rowlock().await;
    db.execute("CREATE TABLE zombie (id BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    for id in 0..ZOMBIES {
        db.execute(&format!("INSERT INTO zombie VALUES ({id}, 0)"))
            .await;
    }
    for pinned in [false, true] {
        let role = Role {
            part: Part::Zombie { pinned },
            url: db.url.clone(),
            ttl: TTL,
        };
        // Showing what is lost without the pin takes a few rounds.
        let rounds = if pinned { rounds() } else { rounds().min(24) };
        let at_a_time = if db.one_writer() { 1 } else { ZOMBIES };
        let mut tallies = JoinSet::new();
        for id in 0..at_a_time {
            let (app, rowlock, role) = (db.app.clone(), rowlock.clone(), role.clone());
            tallies.spawn(haunt(app, rowlock, role, id, rounds.div_ceil(at_a_time)));
        }
        let mut all = Tally::default();
        while let Some(tally) = tallies.join_next().await {
            let tally = tally.unwrap();
            all.rounds += tally.rounds;
            all.committed += tally.committed;
            all.refused += tally.refused;
            all.taken_over += tally.taken_over;
            all.lost += tally.lost;
        }
        println!(
            "zombie {engine}, {}: {} rounds, {} committed, {} refused; taken over {} times meanwhile; \
             {} updates lost",
            if pinned { "pinned" } else { "not pinned" },
            all.rounds,
            all.committed,
            all.refused,
            all.taken_over,
            all.lost
        );
        if pinned {
            assert_eq!(all.lost, 0, "{all:?}");
            assert!(
                all.refused > 0 && all.taken_over > 0,
                "at the first stop, somebody else writes: {all:?}"
            );
        } else {
            assert!(
                all.lost > 0,
                "without the pin the test shows what is lost: {all:?}"
            );
        }
    }
    db.remove().await;
}

/// The rounds of one zombie, on one row.
async fn haunt(app: App, rowlock: Rowlock, role: Role, id: u64, rounds: u64) -> Tally {
    let mut zombie = Process::start(&role);
    let mut tally = Tally::default();
    let row = format!("SELECT n FROM zombie WHERE id = {id}");
    for round in 0..rounds {
        tally.rounds += 1;
        let before = app.number(&row).await;
        // Stopped before its transaction, or right before its commit; or, now and then, in both places.
        // The first time it is stopped until somebody else has written: pauses may be too short on a busy machine.
        let (first, second) = (rand::rng().random_bool(0.7), rand::rng().random_bool(0.5));
        let mut writes = Vec::new();
        zombie.tell(&id.to_string());
        let (again, said) = next(zombie).await;
        zombie = again;
        assert_eq!(said, "worked");
        let mut pause = some_time(TTL);
        if round == 0 || first {
            writes.extend(stopped(&app, &rowlock, &zombie, (id, pause)).await);
        }
        while round == 0 && writes.is_empty() {
            pause *= 2;
            assert!(pause < patience(), "nobody takes over");
            writes.extend(stopped(&app, &rowlock, &zombie, (id, pause)).await);
        }
        let mut written = 0;
        if round == 0 {
            written += all_of(writes.drain(..)).await;
        }
        zombie.tell("go");
        let (again, mut said) = next(zombie).await;
        zombie = again;
        if said == "written" {
            if second {
                let pause = some_time(TTL);
                writes.extend(stopped(&app, &rowlock, &zombie, (id, pause)).await);
            }
            zombie.tell("go");
            (zombie, said) = next(zombie).await;
        }
        written += all_of(writes).await;
        tally.taken_over += written;
        match said.as_str() {
            "committed" => {
                tally.committed += 1;
                written += 1;
            }
            "refused" => tally.refused += 1,
            said => panic!("the zombie says {said}"),
        }
        tally.lost += before + written - app.number(&row).await;
    }
    tally
}

pub(crate) async fn next(mut zombie: Process) -> (Process, String) {
    tokio::task::spawn_blocking(move || {
        let line = zombie.listen();
        (zombie, line)
    })
    .await
    .unwrap()
}

async fn write_beside(app: App, id: u64, held: Held) {
    let mut tx = app.begin().await;
    let sql = format!("UPDATE zombie SET n = n + 1 WHERE id = {id}");
    tx.execute(&sql).await.unwrap();
    tx.pin(&held).await.unwrap();
    tx.commit().await.unwrap();
    let _ = loss(held.release().await);
}

/// Waits for the writes, and returns how many they are.
async fn all_of(writes: impl IntoIterator<Item = JoinHandle<()>>) -> i64 {
    let mut count = 0;
    for write in writes {
        write.await.unwrap();
        count += 1;
    }
    count
}

/// 0.5 to 3 leases.
pub(crate) fn some_time(lease: Duration) -> Duration {
    lease.mul_f64(rand::rng().random_range(0.5..=3.0))
}

/// Stops the zombie for this time. Whoever was granted the name meanwhile goes on to write.
async fn stopped(
    app: &App,
    rowlock: &Rowlock,
    zombie: &Process,
    (id, pause): (u64, Duration),
) -> Option<JoinHandle<()>> {
    let over = tokio::time::Instant::now() + pause;
    zombie.signal(Signal::SIGSTOP);
    let lock = rowlock.lock(id.to_string()).ttl(Duration::from_secs(10));
    let taken = tokio::time::timeout_at(over, lock.acquire()).await;
    let write = taken
        .ok()
        .map(|held| tokio::spawn(write_beside(app.clone(), id, held.unwrap())));
    tokio::time::sleep_until(over).await;
    zombie.signal(Signal::SIGCONT);
    write
}
