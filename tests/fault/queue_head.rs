//! The process of the first waiter is stopped (SIGSTOP) or killed (SIGKILL): how long the waiters after it have to
//! wait for its turn to end.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rowlock::{Engine, Held, Rowlock};
use rowlock_test::{Db, Process, eventually, queue_of, release, take};

use crate::queue::{NAME, database, ends_soon, holders, start_at_once, turns};

/// How long a waiter has to confirm its turn.
const WINDOW: Duration = Duration::from_secs(2);
/// The TTL of the sessions.
const TTL: Duration = Duration::from_mins(30);
/// Waiters after the first process.
const NEXT: usize = 5;

/// A queue: the waiters of the process at the head, and after them those of another process. The name is held.
struct Queue {
    db: Db,
    rowlock: Rowlock,
    held: Held,
    head: Process,
    next: Process,
}

impl Queue {
    async fn new(engine: Engine, first: usize) -> Self {
        let (db, rowlock) = database(engine).await;
        let held = take(&rowlock, NAME, TTL).await;
        let wait = async |count: usize| {
            eventually("they wait", async || {
                queue_of(&rowlock, NAME).await.len() == count
            })
            .await;
        };
        let head = start_at_once(&db, TTL, 0, first);
        wait(first).await;
        let next = start_at_once(&db, TTL, 1, NEXT);
        wait(first + NEXT).await;
        Self {
            db,
            rowlock,
            held,
            head,
            next,
        }
    }

    /// Stops the process at the head. On SQLite not in a write, which would keep everybody else from writing.
    async fn stop_the_head(&self) {
        let write = "UPDATE rowlock_database SET id = id";
        self.head.stop();
        while self.db.one_writer() && self.db.try_execute(write).await.is_err() {
            self.head.signal(Signal::SIGCONT);
            self.head.stop();
        }
    }

    /// Releases the name, and returns how long the waiters of the second process needed for their turns.
    async fn release(&self) -> Duration {
        let released = Instant::now();
        release(&self.held).await;
        let next = i64::try_from(NEXT).unwrap();
        eventually("the others have their turns", async || {
            turns(&self.db).await == next
        })
        .await;
        released.elapsed()
    }

    /// Those of the second process had their turns in order. Returns the holders of later turns.
    async fn check(&mut self) -> Vec<String> {
        let lines = self.next.rest();
        assert_eq!(lines.len(), NEXT + 1, "{lines:?}");
        let mut holders = holders(&self.db).await;
        assert!(
            holders[..NEXT]
                .iter()
                .all(|holder| holder.starts_with("1:")),
            "{holders:?}"
        );
        holders.split_off(NEXT)
    }
}

pub(crate) async fn stopped(engine: Engine) {
    let mut queue = Queue::new(engine, 1).await;
    queue.stop_the_head().await;
    let delay = queue.release().await;
    println!(
        "queue {engine}: a stopped process at the head cost {} ms",
        delay.as_millis()
    );
    // It goes on waiting when it wakes up.
    queue.head.signal(Signal::SIGCONT);
    eventually("it has its turn", async || {
        turns(&queue.db).await > i64::try_from(NEXT).unwrap()
    })
    .await;
    assert_eq!(queue.check().await, ["0:0"]);
    assert_eq!(queue.head.rest(), ["had 0:0", "done"]);
    queue.db.remove().await;
}

pub(crate) async fn killed(engine: Engine) {
    for first in [1, 40] {
        let mut queue = Queue::new(engine, first).await;
        queue.head.kill();
        ends_soon(&queue.db, 0).await;
        let delay = queue.release().await;
        println!(
            "queue {engine}: {first} waiters of a killed process at the head cost {} ms",
            delay.as_millis()
        );
        // Not a window for each of the dead.
        let windows = delay.div_duration_f64(WINDOW);
        assert!(first == 1 || windows < 40.0, "{windows} windows have ended");
        assert!(queue.check().await.is_empty());
        assert_eq!(
            queue.db.number("SELECT COUNT(*) FROM rowlock_waiter").await,
            0
        );
        drop(queue.rowlock);
        queue.db.remove().await;
    }
}
