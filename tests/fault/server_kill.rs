//! The database server is killed with SIGKILL during the traffic and started again: clients recover
//! without a restart, and there are never two holders.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rowlock::{Engine, Rowlock};
use rowlock_test::{Commits, servers};

use crate::history::{Event, History, now};

const CLIENTS: usize = 3;
const TASKS: usize = 4;
const ROUNDS: usize = 3;

/// A server that this test may kill.
pub(crate) struct Server {
    engine: Engine,
    dir: tempfile::TempDir,
}

impl Server {
    pub(crate) fn new(engine: Engine) -> Self {
        let dir = tempfile::Builder::new().prefix("rowlock-kill-").tempdir();
        Self {
            engine,
            dir: dir.unwrap(),
        }
    }

    fn servers(&self, command: &[&str]) -> String {
        servers(command, self.dir.path(), &[], Commits::Durable)
    }

    pub(crate) fn start(&self) -> String {
        self.servers(&["start", self.engine.name()])
    }

    /// Its folder.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn stop(&self) {
        self.servers(&["stop"]);
    }

    pub(crate) fn pid(&self) -> Pid {
        let pid = std::fs::read_to_string(self.dir.path().join("pid")).unwrap();
        Pid::from_raw(pid.trim().parse().unwrap())
    }

    /// Kills it with the processes of its connections, as a crash of the machine does, and waits until all are gone.
    pub(crate) fn kill(&self) {
        let first = self.pid();
        // It makes no more processes.
        kill(first, Signal::SIGSTOP).unwrap();
        let mut all = children(first);
        all.insert(0, first);
        for pid in &all {
            // A process of a connection may have ended meanwhile.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        let is_there = |pid: &Pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|text| !text.contains("State:\tZ"))
        };
        while all.iter().any(is_there) {
            std::thread::yield_now();
        }
    }
}

/// The processes that a server has made.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let of_parent = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name, which stands before it, may have spaces.
        let of: i32 = stat.rsplit_once(')')?.1.split(' ').nth(2)?.parse().ok()?;
        (of == parent.as_raw()).then(|| Pid::from_raw(pid))
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| of_parent(entry.ok()?)).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(crate) async fn run(engine: Engine) {
    let server = Server::new(engine);
    let url = server.start();
    let history = Arc::new(Mutex::new(History::default()));
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    let mut grants = Vec::new();
    for _ in 0..CLIENTS {
        let rowlock = Rowlock::builder()
            .operation_timeout(Duration::from_secs(2))
            .connect(&url)
            .await
            .unwrap();
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
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "a client is stuck {when}"
            );
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
        assert!(error.is_transient(), "{error}");
    }
}
