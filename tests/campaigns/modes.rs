//! 200 tasks in 4 processes, each time in a mode of its own choice, on 5 names: every name's counter in the
//! application's table equals the number of reported successes, its fences strictly rise, and no error reaches
//! anybody who did not ask for it. `ROWLOCK_FAULT_SECONDS` is how long.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use rowlock::{Engine, Error, Retry};
use rowlock_test::{App, Db, Process, on_app, tell};
use sqlx::AssertSqlSafe;

use crate::campaign::seconds;
use crate::role::{Part, Role};

const PROCESSES: usize = 4;
const TASKS: usize = 50;
const NAMES: i64 = 5;
/// Connections of a process, for all of its tasks.
const CONNECTIONS: u32 = 8;

/// Without end: what happens between tasks is not their callers' business.
const POLICY: Retry = Retry::new()
    .attempts(u32::MAX)
    .backoff(Duration::from_millis(5), Duration::from_millis(500));

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mode {
    Pinned,
    Pessimistic,
    Optimistic,
}

/// Counts one on, and logs the fence, in whichever transaction it is.
macro_rules! count {
    ($tx:expr, $id:expr, $fence:expr) => {{
        let read = format!("SELECT n FROM counter WHERE id = {}", $id);
        let n: i64 = sqlx::query_scalar(AssertSqlSafe(read))
            .fetch_one(&mut *$tx)
            .await?;
        let write = format!("UPDATE counter SET n = {} WHERE id = {}", n + 1, $id);
        sqlx::raw_sql(AssertSqlSafe(write))
            .execute(&mut *$tx)
            .await?;
        let fence: i64 = $fence;
        let log = format!(
            "INSERT INTO log (id, n, fence) VALUES ({}, {}, {fence})",
            $id,
            n + 1
        );
        sqlx::raw_sql(AssertSqlSafe(log)).execute(&mut *$tx).await?;
        Ok::<(), Error>(())
    }};
}

/// The same on every engine: `false` is an error that the caller asked for.
macro_rules! one {
    ($pool:expr, $rowlock:expr, $id:expr, $mode:expr) => {{
        let (rowlock, id) = ($rowlock, $id);
        let name = format!("counter:{id}");
        let name = name.as_str();
        let wait = Duration::from_millis(500);
        let result: Result<(), Error> = match $mode {
            Mode::Pinned => {
                match rowlock
                    .lock(name)
                    .ttl(Duration::from_secs(20))
                    .wait(wait)
                    .acquire()
                    .await
                {
                    Err(error) => Err(error),
                    Ok(held) => {
                        let guard = &held;
                        let done = POLICY
                            .run($pool, |mut tx| async move {
                                count!(tx, id, guard.fence())?;
                                guard.pin(&mut tx).await
                            })
                            .await;
                        match held.release().await {
                            Ok(()) | Err(Error::Lost { .. }) => done,
                            Err(error) => Err(error),
                        }
                    }
                }
            }
            Mode::Pessimistic => {
                POLICY
                    .run($pool, |mut tx| async move {
                        let locked = rowlock
                            .in_tx(&mut tx)
                            .lock(name)
                            .wait(wait)
                            .acquire()
                            .await?;
                        count!(tx, id, locked.fence())
                    })
                    .await
            }
            // Advanced behind the write, logged behind that.
            Mode::Optimistic => {
                POLICY
                    .run($pool, |mut tx| async move {
                        let seen = rowlock.in_tx(&mut tx).version(name).await?;
                        count!(
                            tx,
                            id,
                            rowlock
                                .in_tx(&mut tx)
                                .advance(&seen)
                                .await?
                                .or_conflict(&seen)?
                        )
                    })
                    .await
            }
        };
        match result {
            Ok(()) => Ok(true),
            Err(Error::WaitTimeout { .. }) => Ok(false), // asked for: it would not wait for longer
            Err(error) => Err(error),
        }
    }};
}

pub(crate) async fn work(role: &Role, seconds: u64) {
    let rowlock = role.connect().await;
    let app = App::connect(&role.url, CONNECTIONS).await;
    tell("ready");
    let until = Instant::now() + Duration::from_secs(seconds);
    // Each mode has a success, also on a busy machine.
    let succeeded: Arc<[AtomicBool; 3]> = Arc::default();
    let has_succeeded = |mode: &AtomicBool| mode.load(Ordering::Relaxed);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (rowlock, app) = (rowlock.clone(), app.clone());
            let succeeded = Arc::clone(&succeeded);
            tokio::spawn(async move {
                let mut done: HashMap<(i64, Mode), u64> = HashMap::new();
                while Instant::now() < until || !succeeded.iter().all(has_succeeded) {
                    let (id, mode) = choice();
                    let one: Result<bool, Error> =
                        async { on_app!(&app, pool => one!(pool, &rowlock, id, mode)) }.await;
                    match one {
                        Ok(true) => {
                            succeeded[mode as usize].store(true, Ordering::Relaxed);
                            *done.entry((id, mode)).or_default() += 1;
                        }
                        Ok(false) => {}
                        Err(error) => tell(format!("error {mode:?}: {error}")),
                    }
                }
                done
            })
        })
        .collect();
    for task in tasks {
        for ((id, mode), count) in task.await.unwrap() {
            tell(format!("done {id} {mode:?} {count}"));
        }
    }
    rowlock.flush().await;
}

fn choice() -> (i64, Mode) {
    let mut rng = rand::rng();
    let modes = [Mode::Pinned, Mode::Pessimistic, Mode::Optimistic];
    (
        rng.random_range(0..NAMES),
        modes[rng.random_range(0..modes.len())],
    )
}

pub(crate) async fn run(engine: Engine) {
    let db = Db::new(engine).await;
    drop(db.rowlock().await);
    db.execute("CREATE TABLE counter (id BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    db.execute("CREATE TABLE log (id BIGINT NOT NULL, n BIGINT NOT NULL, fence BIGINT NOT NULL)")
        .await;
    for id in 0..NAMES {
        db.execute(&format!("INSERT INTO counter VALUES ({id}, 0)"))
            .await;
    }
    let role = Role {
        part: Part::Modes { seconds: seconds() },
        url: db.url.clone(),
        ttl: Duration::from_secs(20),
    };
    let processes: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let role = role.clone();
            tokio::task::spawn_blocking(move || Process::start(&role).rest())
        })
        .collect();
    let mut successes: HashMap<i64, i64> = HashMap::new();
    let mut of_mode: HashMap<String, i64> = HashMap::new();
    for process in processes {
        for line in process.await.unwrap() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["ready"] => {}
                ["done", id, mode, count] => {
                    let count: i64 = count.parse().unwrap();
                    *successes.entry(id.parse().unwrap()).or_default() += count;
                    *of_mode.entry(mode.into()).or_default() += count;
                }
                _ => panic!("{line}"),
            }
        }
    }
    for id in 0..NAMES {
        let n = db
            .number(&format!("SELECT n FROM counter WHERE id = {id}"))
            .await;
        let expected = successes.get(&id).copied().unwrap_or_default();
        assert_eq!(n, expected, "counter {id}");
        // One row for each count, and every fence above the one before.
        let rows = db
            .number(&format!("SELECT COUNT(*) FROM log WHERE id = {id}"))
            .await;
        assert_eq!(rows, n);
        let rising = db
            .number(&format!(
                "SELECT COUNT(*) FROM log a JOIN log b ON b.id = a.id AND b.n = a.n + 1 \
                 WHERE a.id = {id} AND b.fence > a.fence"
            ))
            .await;
        assert_eq!(rising, (n - 1).max(0), "the fences of {id} rise");
    }
    println!(
        "modes {engine}: {} s, {} successes ({}); counters and fences right, no errors",
        seconds(),
        successes.values().sum::<i64>(),
        ["Pinned", "Pessimistic", "Optimistic"]
            .map(|mode| format!(
                "{} {}",
                of_mode.get(mode).unwrap_or(&0),
                mode.to_lowercase()
            ))
            .join(", ")
    );
    assert_eq!(
        of_mode.len(),
        3,
        "every mode had its successes: {of_mode:?}"
    );
    db.remove().await;
}
