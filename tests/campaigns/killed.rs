//! Statements that the server cuts at any moment (`pg_cancel_backend`, `KILL QUERY`): nobody holds what others hold,
//! each effect happens once, and nothing is left behind. `ROWLOCK_FAULT_SECONDS` is how long.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::seq::IndexedRandom;
use rowlock::{Begun, Engine, Error, Outcome, Retry, Rowlock, Scope, TransactionError};
use rowlock_test::{App, Db, eventually, on_app, request};
use sqlx::{AssertSqlSafe, MySqlPool};
use tokio::task::JoinSet;

use crate::campaign::seconds;

const CLIENTS: usize = 2;
const TASKS: usize = 10;
/// Connections of the application, for the tasks of a client.
const CONNECTIONS: u32 = 6;

const NAMES: usize = 3;
const TTL: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_millis(300);
/// New keys come so often.
const TURN: Duration = Duration::from_millis(100);
const PERMITS: u32 = 2;
const ALL: i64 = 1_000;

const POLICY: Retry = Retry::new()
    .attempts(5)
    .backoff(Duration::from_millis(1), Duration::from_millis(20));

/// How much of something is held, by those who were told so.
struct Room(AtomicI64, i64);

impl Room {
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
    locks: [Room; NAMES],
    read_write: Room,
    permits: Room,
    /// How often each counter was counted on, for certain and at most.
    counted: [(AtomicI64, AtomicI64); NAMES],
    /// The attempts that are under way, and the outcomes of the keys.
    keys: Mutex<HashMap<String, (i64, Option<i64>)>>,
    done: AtomicU64,
    errors: Mutex<HashMap<String, u32>>,
}

impl Seen {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            stop: AtomicBool::new(false),
            locks: [const { Room::new(1) }; NAMES],
            read_write: Room::new(ALL),
            permits: Room::new(i64::from(PERMITS)),
            counted: [const { (AtomicI64::new(0), AtomicI64::new(0)) }; NAMES],
            keys: Mutex::default(),
            done: AtomicU64::new(0),
            errors: Mutex::default(),
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

async fn pause() {
    let micros = rand::rng().random_range(0..3_000);
    tokio::time::sleep(Duration::from_micros(micros)).await;
}

/// Counts one on, in whichever transaction it is.
macro_rules! count {
    ($tx:expr, $at:expr) => {{
        let read = format!("SELECT n FROM counter WHERE id = {}", $at);
        let n: i64 = sqlx::query_scalar(AssertSqlSafe(read))
            .fetch_one(&mut *$tx)
            .await?;
        let write = format!("UPDATE counter SET n = {} WHERE id = {}", n + 1, $at);
        sqlx::raw_sql(AssertSqlSafe(write))
            .execute(&mut *$tx)
            .await?;
    }};
}

async fn in_a_lease(client: &Rowlock, app: &App, seen: &Seen) -> Result<(), Error> {
    let at = rand::rng().random_range(0..NAMES);
    let name = format!("counter {at}");
    let held = client.lock(name).ttl(TTL).wait(WAIT).acquire().await?;
    seen.locks[at].enter(1);
    let guard = &held;
    let done: Result<(), Error> = on_app!(app, pool => {
        POLICY.run(pool, |mut tx| async move {
            count!(tx, at);
            guard.pin(&mut tx).await
        }).await
    });
    seen.locks[at].leave(1);
    seen.counted(at, done)?;
    held.release().await
}

async fn in_a_transaction(client: &Rowlock, app: &App, seen: &Seen) -> Result<(), Error> {
    let at = rand::rng().random_range(0..NAMES);
    let name = &*format!("counter {at}");
    let done: Result<(), Error> = on_app!(app, pool => {
        POLICY.run(pool, |mut tx| async move {
            client.in_tx(&mut tx).lock(name).wait(WAIT).acquire().await?;
            count!(tx, at);
            Ok(())
        }).await
    });
    seen.counted(at, done)
}

async fn with_a_permit(client: &Rowlock, seen: &Seen) -> Result<(), Error> {
    let kind = rand::rng().random_range(0..3);
    if kind == 2 {
        let permits = client.semaphore("permits", PERMITS).ttl(TTL).wait(WAIT);
        let held = permits.acquire().await?;
        seen.permits.enter(1);
        pause().await;
        seen.permits.leave(1);
        return held.release().await;
    }
    let lock = client.rw_lock("read_write").ttl(TTL).wait(WAIT);
    let (held, weight) = match kind {
        0 => (lock.read().await?, 1),
        _ => (lock.write().await?, ALL),
    };
    seen.read_write.enter(weight);
    pause().await;
    seen.read_write.leave(weight);
    held.release().await
}

async fn once_in_a_transaction(client: &Rowlock, app: &App, seen: &Seen) -> Result<(), Error> {
    let (key, token) = (seen.key("tx"), rand::rng().random_range(1..i64::MAX));
    let effect = &format!("INSERT INTO effect VALUES ('{key}', {token})");
    let idempotency = client.idempotency().lease(TTL);
    let ran = on_app!(app, pool => {
        idempotency.run_in_tx(pool, Scope("killed").key(&*key), request(), |mut tx| async move {
            sqlx::raw_sql(AssertSqlSafe(effect.clone())).execute(&mut *tx).await?;
            Outcome::json(&token)
        }).await
    })?;
    match ran {
        Begun::New(_) => seen.outcome(&key, token),
        Begun::Replay(kept) => seen.outcome(&key, kept.parse_json()?),
        _ => {}
    }
    Ok(())
}

async fn in_an_attempt(client: &Rowlock, seen: &Seen) -> Result<(), Error> {
    let (key, token) = (seen.key("attempt"), rand::rng().random_range(1..i64::MAX));
    let idempotency = client.idempotency().lease(TTL);
    match idempotency
        .begin(Scope("killed").key(&*key), request())
        .await?
    {
        Begun::New(guard) => {
            seen.attempts(&key, 1);
            pause().await;
            seen.attempts(&key, -1);
            guard.complete(&Outcome::json(&token)?).await?;
            seen.outcome(&key, token);
        }
        Begun::Replay(kept) => seen.outcome(&key, kept.parse_json()?),
        _ => {}
    }
    Ok(())
}

async fn work(client: Rowlock, app: App, seen: Arc<Seen>) {
    while !seen.stop.load(Ordering::Relaxed) {
        let kind = rand::rng().random_range(0..8);
        let done = match kind {
            0 => in_a_lease(&client, &app, &seen).await,
            1 => in_a_transaction(&client, &app, &seen).await,
            2 => once_in_a_transaction(&client, &app, &seen).await,
            3 => in_an_attempt(&client, &seen).await,
            // The longest texts.
            _ => with_a_permit(&client, &seen).await,
        };
        match done {
            Ok(()) => _ = seen.done.fetch_add(1, Ordering::Relaxed),
            Err(Error::WaitTimeout { .. }) => {}
            Err(error) => {
                let wrong = matches!(
                    error,
                    Error::Transaction(TransactionError::WrongDatabase { .. })
                );
                assert!(!wrong, "{error}");
                let error = format!("{kind}: {error}");
                *seen.errors.lock().unwrap().entry(error).or_default() += 1;
            }
        }
    }
}

/// The sessions of the database that do this now.
fn running(engine: Engine, command: &str) -> String {
    let schema = match engine {
        Engine::MariaDb => "information_schema",
        _ => "performance_schema",
    };
    format!(
        "SELECT CAST(id AS SIGNED) FROM {schema}.processlist
         WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command = '{command}'"
    )
}

const CANCEL: &str = "\
SELECT COUNT(pg_cancel_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' AND random() < 0.3";

/// Cuts statements, and returns how many.
async fn kill(db: &Db, seen: &Seen) -> i64 {
    let (app, running) = (App::connect(&db.url, 1).await, running(db.engine, "Query"));
    let mut cuts = 0;
    while !seen.stop.load(Ordering::Relaxed) {
        if let App::MySql(pool) = &app {
            if let Some(id) = ids(pool, &running).await.choose(&mut rand::rng()) {
                let kill = sqlx::raw_sql(AssertSqlSafe(format!("KILL QUERY {id}")));
                cuts += i64::from(kill.execute(pool).await.is_ok());
            }
        } else {
            cuts += app.number(CANCEL).await;
        }
        pause().await;
    }
    cuts
}

/// MySQL and MariaDB say nothing more when KILL QUERY comes between two statements of a text: its client waits. As an
/// operator would, this ends sessions that have done nothing for a second or two.
async fn end_the_silent(db: &Db) {
    let app = App::connect(&db.url, 1).await;
    let App::MySql(pool) = &app else {
        return std::future::pending().await;
    };
    let silent = running(db.engine, "Sleep") + " AND time >= 1";
    loop {
        for id in ids(pool, &silent).await {
            let kill = sqlx::raw_sql(AssertSqlSafe(format!("KILL {id}")));
            _ = kill.execute(pool).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn ids(pool: &MySqlPool, sessions: &str) -> Vec<i64> {
    let ids = sqlx::query_scalar(AssertSqlSafe(sessions.to_owned()));
    ids.fetch_all(pool).await.unwrap()
}

pub(crate) async fn run(engine: Engine) {
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
        let client = client.connect(&db.url).await.unwrap();
        let app = App::connect(&db.url, CONNECTIONS).await;
        for _ in 0..TASKS {
            tasks.spawn(work(client.clone(), app.clone(), Arc::clone(&seen)));
        }
        clients.push((client, app));
    }
    let end = async {
        tokio::time::sleep(Duration::from_secs(seconds())).await;
        seen.stop.store(true, Ordering::Relaxed);
    };
    let all = async {
        let (cuts, ()) = tokio::join!(kill(&db, &seen), end);
        tasks.join_all().await;
        cuts
    };
    let cuts = tokio::select! {
        cuts = all => cuts,
        () = end_the_silent(&db) => unreachable!("it has no end"),
    };
    for (client, app) in clients {
        client.flush().await;
        client.shutdown(Duration::from_secs(10)).await;
        app.close().await;
    }
    judge(&db, &seen).await;
    println!(
        "killed {engine}: {} s, {cuts} statements cut, {:?} done, {:#?}",
        seconds(),
        seen.done,
        seen.errors
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
        assert!(certain > 0, "{id} was counted on");
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
