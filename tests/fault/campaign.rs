//! 8 processes on 3 names, TTL 1 s; every ~100 ms one of them is killed with SIGKILL, or paused with
//! SIGSTOP for up to 3 s. `ROWLOCK_FAULT_SECONDS` is how long.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;
use rowlock::{Engine, Rowlock};
use rowlock_test::Db;

use crate::history::{Event, History, the_checker_sees_violations};
use crate::role::{Part, Role};

const PROCESSES: usize = 8;
const TTL: Duration = Duration::from_secs(1);
const MAX_PAUSE: u64 = 3_000;
/// How long after the TTL of a dead holder its name may still be bound.
const SLACK: Duration = Duration::from_secs(1);

pub(crate) fn seconds() -> u64 {
    std::env::var("ROWLOCK_FAULT_SECONDS").map_or(10, |text| text.parse().expect("a number"))
}

/// A running worker. Dropping it kills it, paused or not.
struct Worker {
    child: Child,
    paused_until: Option<Instant>,
    /// What it holds, as far as it has told.
    holds: HashMap<String, i64>,
}

impl Worker {
    /// `slot` and the generation tell the parent whose line it is.
    fn start(role: &Role, slot: usize, sender: &mpsc::Sender<(usize, u32, Event)>) -> Self {
        let mut child = role.command().stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, id) = (sender.clone(), child.id());
        std::thread::spawn(move || {
            for line in output.lines() {
                match line
                    .map_err(|e| e.to_string())
                    .and_then(|line| line.parse())
                {
                    Ok(event) => drop(sender.send((slot, id, event))),
                    Err(reason) => eprintln!("fault: {reason}"),
                }
            }
        });
        Self {
            child,
            paused_until: None,
            holds: HashMap::new(),
        }
    }

    fn signal(&self, signal: Signal) {
        kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()),
            signal,
        )
        .unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) async fn run(engine: Engine) {
    the_checker_sees_violations();
    let db = Db::new(engine).await;
    let watcher = db.rowlock().await;
    let role = Role {
        part: Part::Campaign,
        url: db.url.clone(),
        ttl: TTL,
    };
    let (sender, receiver) = mpsc::channel();
    let mut workers: Vec<Worker> = (0..PROCESSES)
        .map(|slot| Worker::start(&role, slot, &sender))
        .collect();
    let mut history = History::default();
    let mut freed = tokio::task::JoinSet::new();
    let (mut kills, mut pauses) = (0, 0);

    let until = Instant::now() + Duration::from_secs(seconds());
    let mut strike = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        take_in(&receiver, &mut workers, &mut history);
        for worker in &mut workers {
            if worker
                .paused_until
                .is_some_and(|until| until <= Instant::now())
            {
                worker.paused_until = None;
                worker.signal(Signal::SIGCONT);
            }
        }
        if strike <= Instant::now() {
            strike += Duration::from_millis(rand::rng().random_range(60..140));
            let slot = rand::rng().random_range(0..PROCESSES);
            if workers[slot].paused_until.is_none() && rand::rng().random_bool(0.5) {
                pauses += 1;
                let pause = rand::rng().random_range(100..=MAX_PAUSE);
                workers[slot].signal(Signal::SIGSTOP);
                workers[slot].paused_until = Some(Instant::now() + Duration::from_millis(pause));
            } else {
                kills += 1;
                workers[slot].child.kill().unwrap();
                workers[slot].child.wait().unwrap();
                let died = Instant::now();
                take_in(&receiver, &mut workers, &mut history);
                for (name, fence) in workers[slot].holds.drain() {
                    freed.spawn(time_to_be_free(watcher.clone(), name, fence, died));
                }
                workers[slot] = Worker::start(&role, slot, &sender);
            }
        }
        // The pace of the loop, which looks at clocks: strikes and the ends of pauses have a time, and no event.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(workers);
    drop(sender);
    for (_, _, event) in receiver {
        history.record(event);
    }
    let (mut deaths, mut slowest) = (0, Duration::ZERO);
    while let Some(time) = freed.join_next().await {
        let time = time.unwrap();
        assert!(
            time <= TTL + SLACK,
            "a dead holder's name was bound for {time:?}"
        );
        deaths += 1;
        slowest = slowest.max(time);
    }
    let verdict = history.check();
    assert!(verdict.grants > 20 && verdict.writes > 20, "{verdict:?}");
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

fn take_in(
    receiver: &mpsc::Receiver<(usize, u32, Event)>,
    workers: &mut [Worker],
    history: &mut History,
) {
    while let Ok((slot, id, event)) = receiver.try_recv() {
        if workers[slot].child.id() == id {
            match &event {
                Event::Granted { name, fence, .. } => {
                    workers[slot].holds.insert(name.clone(), *fence);
                }
                Event::Done { name, .. } => drop(workers[slot].holds.remove(name)),
                Event::Write { .. } => {}
            }
        }
        history.record(event);
    }
}

/// How long after its holder's death the grant with this fence is still in the row.
async fn time_to_be_free(watcher: Rowlock, name: String, fence: i64, died: Instant) -> Duration {
    loop {
        let looked = Instant::now();
        match watcher.inspect(name.as_str()).await {
            Ok(Some(lock)) if lock.fence == fence => {}
            Ok(_) => return looked - died,
            Err(error) => eprintln!("fault: {error}"),
        }
        assert!(died.elapsed() < 20 * TTL, "{name} is never free");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
