//! Leader election: an observer, which has no lease, sees the leaders in order, each once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rowlock::Rowlock;
use rowlock_recipes::leader::{Change, Election, Leadership};
use rowlock_test::{Db, on_every_engine};
use tokio::sync::mpsc;

const INTERVAL: Duration = Duration::from_millis(10);

async fn lead(rowlock: &Rowlock, candidate: &str) -> Leadership {
    let election = Election::new(rowlock, "scheduler");
    let election = election.candidate(Arc::<str>::from(candidate));
    election.campaign().await.unwrap()
}

/// The term that is reported, and whose it is.
fn leads(change: Change) -> (i64, String) {
    match change {
        Change::Leads(leader) => (leader.term, leader.candidate),
        Change::Vacant => panic!("nobody leads"),
    }
}

on_every_engine! {
    async fn an_observer_sees_each_leader_once_and_in_order(db: &Db) {
        let (one, two, watcher) = (db.rowlock().await, db.rowlock().await, db.rowlock().await);
        let mut observer = Election::new(&watcher, "scheduler").observer().interval(INTERVAL);
        let (tell, mut told) = mpsc::unbounded_channel();
        let observing = tokio::spawn(async move {
            while tell.send(observer.next().await.unwrap()).is_ok() {}
        });
        // The first report comes at once.
        assert_eq!(told.recv().await.unwrap(), Change::Vacant);
        let mut last = 0;
        for round in 0..5 {
            let candidate = format!("candidate {}", round % 2);
            let leadership = lead([&one, &two][round % 2], &candidate).await;
            let seen = leads(told.recv().await.unwrap());
            assert_eq!(seen, (leadership.term(), candidate));
            assert!(seen.0 > last, "{seen:?} after {last}");
            last = seen.0;
            leadership.resign().await.unwrap();
            assert_eq!(told.recv().await.unwrap(), Change::Vacant);
        }
        // While nothing changes, nothing is reported.
        let leadership = lead(&one, "last").await;
        leads(told.recv().await.unwrap());
        let looks = tokio::time::timeout(20 * INTERVAL, told.recv()).await;
        assert!(looks.is_err(), "{looks:?}");
        drop(leadership);
        observing.abort();
    }

    async fn an_observer_that_is_dropped_and_asked_again_waits_for_its_interval(db: &Db) {
        let rowlock = db.rowlock().await;
        let interval = Duration::from_millis(300);
        let mut observer = Election::new(&rowlock, "scheduler").observer().interval(interval);
        let first = Instant::now();
        assert_eq!(observer.next().await.unwrap(), Change::Vacant);
        let leadership = lead(&rowlock, "one").await;
        let change = loop {
            // Asked again and again, each time for a moment.
            if let Ok(change) = tokio::time::timeout(INTERVAL, observer.next()).await {
                break change.unwrap();
            }
        };
        assert_eq!(leads(change), (leadership.term(), "one".into()));
        assert!(first.elapsed() >= interval, "{:?}", first.elapsed());
    }

    async fn an_observer_reports_that_it_cannot_look_and_goes_on(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut observer = Election::new(&rowlock, "scheduler").observer().interval(INTERVAL);
        let leadership = lead(&rowlock, "one").await;
        let term = leadership.term();
        assert_eq!(leads(observer.next().await.unwrap()), (term, "one".into()));
        db.damage("UPDATE rowlock_lock SET grant_id = NULL").await;
        for _ in 0..2 {
            let error = observer.next().await.unwrap_err();
            assert!(matches!(error, rowlock::Error::Schema(rowlock::SchemaError::Corrupt { .. })), "{error}");
        }
        // This repairs the row.
        let _ = rowlock.admin().force_release("scheduler").await.unwrap();
        assert_eq!(observer.next().await.unwrap(), Change::Vacant);
    }
}
