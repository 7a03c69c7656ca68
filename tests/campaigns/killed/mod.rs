//! Statements that the server cuts at any moment (`pg_cancel_backend`, `KILL QUERY`), and sessions that it ends
//! (`pg_terminate_backend`, `KILL`): nobody holds what others hold, each effect happens once, and nothing is left
//! behind. `ROWLOCK_FAULT_SECONDS` is how long.
//!
//! - [`work`]: what the tasks do.
//! - [`killer`]: what kills.

mod killer;
mod work;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng;
use rowlock::{Engine, Error, Rowlock};
use rowlock_test::{App, Db, connected, eventually};
use tokio::task::JoinSet;

pub(crate) use self::killer::Victim;
use self::killer::end_the_silent;
use self::work::work;
use crate::campaign::seconds;

const CLIENTS: usize = 2;
const TASKS: usize = 10;
/// Connections of the application, for the tasks of a client.
const CONNECTIONS: u32 = 6;

const NAMES: usize = 3;
const TTL: Duration = Duration::from_secs(10);
/// New keys come so often.
const TURN: Duration = Duration::from_millis(100);
const PERMITS: u32 = 2;
const ALL: i64 = 1_000;

/// How much of something is held, by those who were told so.
struct Usage(AtomicI64, i64);

impl Usage {
    const fn new(capacity: i64) -> Self {
        Self(AtomicI64::new(0), capacity)
    }

    fn enter(&self, weight: i64) {
        let used = self.0.fetch_add(weight, Ordering::SeqCst) + weight;
        assert!(used <= self.1, "{used} of {} are held", self.1);
    }

    fn leave(&self, weight: i64) {
        self.0.fetch_sub(weight, Ordering::SeqCst);
    }
}

struct Seen {
    began: Instant,
    stop: AtomicBool,
    locks: [Usage; NAMES],
    read_write: Usage,
    permits: Usage,
    /// How often each counter was counted on, for certain and at most.
    counted: [(AtomicI64, AtomicI64); NAMES],
    /// The attempts that are under way, and the outcomes of the keys.
    keys: Mutex<HashMap<String, (i64, Option<i64>)>>,
    done: AtomicU64,
    failed: AtomicU64,
}

impl Seen {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            stop: AtomicBool::new(false),
            locks: [const { Usage::new(1) }; NAMES],
            read_write: Usage::new(ALL),
            permits: Usage::new(i64::from(PERMITS)),
            counted: [const { (AtomicI64::new(0), AtomicI64::new(0)) }; NAMES],
            keys: Mutex::default(),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// What came of counting on.
    fn counted(&self, at: usize, done: Result<(), Error>) -> Result<(), Error> {
        let (certain, most) = &self.counted[at];
        if done.is_ok() || matches!(done, Err(Error::CommitUnknown { .. })) {
            most.fetch_add(1, Ordering::SeqCst);
        }
        if done.is_ok() {
            certain.fetch_add(1, Ordering::SeqCst);
        }
        done
    }

    /// The key has this outcome, and no other one.
    fn outcome(&self, key: &str, outcome: i64) {
        let mut keys = self.keys.lock().unwrap();
        let (_, kept) = keys.entry(key.to_owned()).or_default();
        assert_eq!(*kept.get_or_insert(outcome), outcome, "{key}");
    }

    fn attempts(&self, key: &str, more: i64) {
        let mut keys = self.keys.lock().unwrap();
        let (attempts, _) = keys.entry(key.to_owned()).or_default();
        *attempts += more;
        assert!(*attempts <= 1, "{key} is worked at twice");
    }

    /// A key that others use at about the same time.
    fn key(&self, kind: &str) -> String {
        let turn = self.began.elapsed().as_millis() / TURN.as_millis();
        format!("{kind} {turn} {}", rand::rng().random_range(0..3))
    }
}

pub(crate) async fn run(engine: Engine, victim: Victim) {
    let db = Db::new(engine).await;
    db.execute("CREATE TABLE counter (id BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    db.execute("CREATE TABLE effect (name VARCHAR(50) NOT NULL, token BIGINT NOT NULL)")
        .await;
    for id in 0..NAMES {
        db.execute(&format!("INSERT INTO counter VALUES ({id}, 0)"))
            .await;
    }
    let seen = Arc::new(Seen::new());
    let mut tasks = JoinSet::new();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let client = Rowlock::builder().operation_timeout(Duration::from_secs(1));
        let client = connected(&client, &db.url).await;
        let app = App::connect(&db.url, CONNECTIONS).await;
        for _ in 0..TASKS {
            tasks.spawn(work(client.clone(), app.clone(), Arc::clone(&seen)));
        }
        clients.push((client, app));
    }
    let end = async {
        tokio::time::sleep(Duration::from_secs(seconds())).await;
        let is_counted = || {
            let mut counters = seen.counted.iter();
            counters.all(|(certain, _)| certain.load(Ordering::SeqCst) > 0)
        };
        eventually("each counter is counted on", async || is_counted()).await;
        seen.stop.store(true, Ordering::Relaxed);
    };
    let all = async {
        let (count, ()) = tokio::join!(victim.all(&db, &seen), end);
        tasks.join_all().await;
        count
    };
    let count = tokio::select! {
        count = all => count,
        () = end_the_silent(&db) => unreachable!("it has no end"),
    };
    for (client, app) in clients {
        client.flush().await;
        client.shutdown(Duration::from_secs(10)).await;
        app.close().await;
    }
    assert!(count > 0, "nothing was killed");
    judge(&db, &seen).await;
    println!(
        "killed {engine}: {} s, {count} {victim:?}, {:?} done, {:?} failed",
        seconds(),
        seen.done,
        seen.failed
    );
    db.remove().await;
}

async fn judge(db: &Db, seen: &Seen) {
    for (id, (certain, most)) in seen.counted.iter().enumerate() {
        let n = db
            .number(&format!("SELECT n FROM counter WHERE id = {id}"))
            .await;
        let (certain, most) = (certain.load(Ordering::SeqCst), most.load(Ordering::SeqCst));
        assert!(
            (certain..=most).contains(&n),
            "{id}: {n}, {certain} to {most}"
        );
    }
    let twice = "SELECT COUNT(*) - COUNT(DISTINCT name) FROM effect";
    assert_eq!(db.number(twice).await, 0, "an effect happened twice");
    let keys = std::mem::take(&mut *seen.keys.lock().unwrap());
    for (key, (_, outcome)) in keys {
        let Some(outcome) = outcome.filter(|_| key.starts_with("tx")) else {
            continue;
        };
        let its = format!("SELECT COUNT(*) FROM effect WHERE name = '{key}' AND token = {outcome}");
        assert_eq!(db.number(&its).await, 1, "{key} has its effect");
    }
    // All can be had again.
    let fresh = db.rowlock().await;
    let nothing = async || fresh.admin().list().await.unwrap().is_empty();
    eventually("nothing is held", nothing).await;
    let waiters = async || db.number("SELECT COUNT(*) FROM rowlock_waiter").await == 0;
    eventually("nobody waits", waiters).await;
    for at in 0..NAMES {
        let lock = fresh.lock(format!("counter {at}"));
        drop(lock.acquire().await.unwrap());
    }
    drop(fresh.rw_lock("read_write").write().await.unwrap());
    let permits = fresh.semaphore("permits", PERMITS).weight(PERMITS);
    drop(permits.acquire().await.unwrap());
}
