//! The database server is killed with SIGKILL during the traffic and started again: clients recover
//! without a restart, and there are never two holders.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rowlock::{Engine, Rowlock};
use rowlock_test::{Killable, connected, patience};

use crate::history::{Event, History, now};

const CLIENTS: usize = 3;
const TASKS: usize = 4;
const ROUNDS: usize = 3;

pub(crate) async fn run(engine: Engine) {
    let server = Killable::new(engine);
    let url = server.start();
    let history = Arc::new(Mutex::new(History::default()));
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    let mut grants = Vec::new();
    for _ in 0..CLIENTS {
        let builder = Rowlock::builder().operation_timeout(Duration::from_secs(2));
        let rowlock = connected(&builder, &url).await;
        let count = Arc::new(AtomicU32::new(0));
        grants.push(Arc::clone(&count));
        for task in 0..TASKS {
            let name = ["alpha", "beta"][task % 2];
            let (rowlock, history, stop, count) = (
                rowlock.clone(),
                Arc::clone(&history),
                Arc::clone(&stop),
                Arc::clone(&count),
            );
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    traffic(&rowlock, name, &history, &count).await;
                }
            });
        }
    }
    progress(&grants, "before the first kill").await;
    let mut slowest = Duration::ZERO;
    for _ in 0..ROUNDS {
        tokio::task::block_in_place(|| {
            server.kill();
            server.start();
        });
        slowest = slowest.max(progress(&grants, "after the server was killed and started").await);
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let verdict = history.lock().unwrap().check();
    println!(
        "server_kill {engine}: {ROUNDS} kills, {} grants, {} writes; all clients went on {} ms after the \
         server was back, at the latest",
        verdict.grants,
        verdict.writes,
        slowest.as_millis()
    );
}

/// Waits until every client was granted something from now on, and tells how long that took.
async fn progress(grants: &[Arc<AtomicU32>], when: &str) -> Duration {
    let started = Instant::now();
    for count in grants {
        let before = count.load(Ordering::Relaxed);
        while count.load(Ordering::Relaxed) == before {
            assert!(started.elapsed() < patience(), "a client hangs {when}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    started.elapsed()
}

async fn traffic(rowlock: &Rowlock, name: &str, history: &Mutex<History>, count: &AtomicU32) {
    let tell = |event| history.lock().unwrap().record(event);
    let asked = now();
    let lock = rowlock
        .lock(name)
        .ttl(Duration::from_secs(1))
        .wait(Duration::from_secs(1));
    let held = match lock.acquire().await {
        Ok(held) => held,
        Err(error) => {
            assert!(error.is_transient(), "{error}");
            return;
        }
    };
    let fence = held.fence();
    tell(Event::Granted {
        name: name.into(),
        fence,
        asked,
        at: now(),
    });
    count.fetch_add(1, Ordering::Relaxed);
    for _ in 0..3 {
        let checked = now();
        if !held.is_held() {
            break;
        }
        tell(Event::Write {
            name: name.into(),
            fence,
            checked,
            at: now(),
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    if let Err(error) = held.release().await {
        // A lease may have run out while the server was away.
        let is_known = error.is_transient() || matches!(error, rowlock::Error::Lost { .. });
        assert!(is_known, "{error}");
    }
}
