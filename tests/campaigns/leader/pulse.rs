//! How long a lone write takes on this machine: what a failover takes longer than that is the election's own time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rowlock_test::Db;
use tokio::task::JoinHandle;

const PACE: Duration = Duration::from_millis(20);

/// Writes to a database that nobody else uses, again and again.
pub(super) struct Pulse {
    beats: Arc<Mutex<Beats>>,
    task: JoinHandle<()>,
}

struct Beats {
    /// When the last one began.
    began: Instant,
    /// The longest one since the last question.
    longest: Duration,
}

impl Beats {
    fn longest(&self) -> Duration {
        self.longest.max(self.began.elapsed().saturating_sub(PACE))
    }
}

impl Pulse {
    pub(super) async fn start(db: Arc<Db>) -> Self {
        db.execute("CREATE TABLE pulse (n BIGINT NOT NULL)").await;
        db.execute("INSERT INTO pulse VALUES (0)").await;
        let beats = Arc::new(Mutex::new(Beats {
            began: Instant::now(),
            longest: Duration::ZERO,
        }));
        let shared = Arc::clone(&beats);
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(PACE).await;
                db.execute("UPDATE pulse SET n = n + 1").await;
                let mut beats = shared.lock().unwrap();
                beats.longest = beats.longest();
                beats.began = Instant::now();
            }
        });
        Self { beats, task }
    }

    /// The longest beat since the last question.
    pub(super) fn longest(&self) -> Duration {
        let mut beats = self.beats.lock().unwrap();
        let longest = beats.longest();
        beats.longest = Duration::ZERO;
        longest
    }

    pub(super) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
