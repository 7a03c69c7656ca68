//! Leader election: the callback form runs its work in each term, and drops the work when the term ends.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use rowlock::{Error, Rowlock};
use rowlock_recipes::leader::{Election, Leadership};
use rowlock_test::{Db, eventually, join, loss, on_every_engine, on_tx, queue_is};
use tokio::sync::{Mutex, mpsc};

/// Longer than a test takes: only a resignation or a forced release ends a term.
const TTL: Duration = Duration::from_hours(1);

fn election(rowlock: &Rowlock) -> Election {
    Election::new(rowlock, "scheduler")
        .ttl(TTL)
        .candidate("worker")
}

/// Tells when it is dropped.
struct Dropped(i64, mpsc::UnboundedSender<i64>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.1.send(self.0);
    }
}

async fn nobody_leads(rowlock: &Rowlock) {
    let free = async || rowlock.inspect("scheduler").await.unwrap().is_none();
    eventually("nobody leads", free).await;
}

on_every_engine! {
    async fn the_work_is_dropped_when_the_term_ends_and_the_candidate_campaigns_again(db: &Db) {
        let (rowlock, admin) = (db.rowlock().await, db.rowlock().await);
        let (begin, mut begun) = mpsc::unbounded_channel();
        let (end, mut ended) = mpsc::unbounded_channel();
        let election = Election::new(&rowlock, "scheduler").ttl(Duration::from_secs(3));
        let leading = tokio::spawn(async move {
            let mut terms = 0;
            election.lead(|leadership| {
                terms += 1;
                begin.send(leadership.term()).unwrap();
                let dropped = Dropped(leadership.term(), end.clone());
                async move {
                    let _dropped = dropped;
                    if terms == 3 {
                        return Ok::<_, Error>(ControlFlow::Break(terms));
                    }
                    std::future::pending().await
                }
            }).await
        });
        let first = begun.recv().await.unwrap();
        // Another client's leader learns of it at its next renewal.
        assert_eq!(admin.admin().force_release("scheduler").await.unwrap().unwrap().fence, first);
        assert_eq!(ended.recv().await.unwrap(), first);
        let second = begun.recv().await.unwrap();
        assert!(second > first);
        // The client's own leader learns of it at once.
        assert!(rowlock.admin().force_release("scheduler").await.unwrap().is_some());
        assert_eq!(ended.recv().await.unwrap(), second);
        assert!(begun.recv().await.unwrap() > second);
        assert_eq!(leading.await.unwrap().unwrap(), 3);
        assert_eq!(admin.inspect("scheduler").await.unwrap(), None, "it has resigned");
    }

    async fn work_that_wants_another_term_goes_to_the_end_of_the_queue(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        let (go, gone) = mpsc::unbounded_channel();
        let (election, gone) = (election(&rowlock), Mutex::new(gone));
        let leading = tokio::spawn(async move {
            let (mut terms, gone) = (Vec::new(), &gone);
            election.lead(|leadership| {
                terms.push(leadership.term());
                let terms = terms.clone();
                async move {
                    // It leads until the work is done, and not until the work drops this.
                    drop(leadership);
                    gone.lock().await.recv().await;
                    Ok::<_, Error>(if terms.len() == 2 { ControlFlow::Break(terms) } else { ControlFlow::Continue(()) })
                }
            }).await
        });
        let is_led = async || rowlock.inspect("scheduler").await.unwrap().is_some();
        eventually("it leads", is_led).await;
        let next = join(&other, "scheduler", "other").await;
        go.send(()).unwrap();
        let next = next.await.unwrap().unwrap();
        queue_is(&other, "scheduler", &["worker"]).await;
        let _ = loss(next.release().await);
        go.send(()).unwrap();
        let terms = leading.await.unwrap().unwrap();
        assert!(terms[0] < next.fence() && next.fence() < terms[1], "{terms:?}, {}", next.fence());
    }

    async fn an_error_of_the_work_ends_it_unless_the_term_was_lost(db: &Db) {
        let (rowlock, admin) = (db.rowlock().await, db.rowlock().await);
        let mut terms = 0;
        let admin = &admin;
        let work = |leadership: Leadership| {
            terms += 1;
            async move {
                match terms {
                    1 => {
                        // Nothing has told this client yet that its term has ended.
                        assert!(admin.admin().force_release("scheduler").await.unwrap().is_some());
                        let mut tx = db.begin().await;
                        let lost = on_tx!(&mut tx, tx => leadership.pin(tx).await);
                        tx.release().await;
                        lost?;
                        Ok(ControlFlow::Break(()))
                    }
                    // It is not cut off: the term was not lost.
                    2 => {
                        leadership.resign().await?;
                        Ok(ControlFlow::Continue(()))
                    }
                    _ => Err(Error::Conflict { what: "a plan".into() }),
                }
            }
        };
        let failed = election(&rowlock).lead(work).await.unwrap_err();
        assert!(matches!(failed, Error::Conflict { .. }), "{failed}");
        assert_eq!(terms, 3);
        assert_eq!(admin.inspect("scheduler").await.unwrap(), None, "it has resigned");
    }

    async fn a_caller_that_drops_it_resigns_and_leaves_the_queue(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        let (begin, mut begun) = mpsc::unbounded_channel();
        let started = || {
            let (election, begin) = (election(&rowlock), begin.clone());
            tokio::spawn(async move {
                election.lead(|leadership| {
                    begin.send(leadership.term()).unwrap();
                    async move {
                        let _leads = leadership;
                        std::future::pending::<Result<ControlFlow<()>, Error>>().await
                    }
                }).await
            })
        };
        let leading = started();
        begun.recv().await.unwrap();
        let waiting = started();
        queue_is(&other, "scheduler", &["worker"]).await;
        waiting.abort();
        queue_is(&other, "scheduler", &[]).await;
        leading.abort();
        nobody_leads(&other).await;
    }

    async fn a_candidate_that_finds_the_queue_full_tries_again(db: &Db) {
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        let leader = Election::new(&other, "scheduler").ttl(TTL).campaign().await.unwrap();
        let full = "UPDATE rowlock_lock SET waiters = 10000";
        db.execute(full).await;
        let refused = election(&rowlock).campaign().await;
        assert!(matches!(refused, Err(Error::QueueFull { .. })), "{refused:?}");
        let election = election(&rowlock);
        let work = async |leadership: Leadership| Ok::<_, Error>(ControlFlow::Break(leadership.term()));
        let leading = tokio::spawn(async move { election.lead(work).await });
        let _ = tokio::time::timeout(Duration::from_millis(200), async {
            // Whatever the candidate does meanwhile, it does not end.
            while !leading.is_finished() {
                tokio::task::yield_now().await;
            }
        }).await.expect_err("it goes on");
        db.execute("UPDATE rowlock_lock SET waiters = 0").await;
        queue_is(&other, "scheduler", &["worker"]).await;
        let _ = loss(leader.resign().await);
        assert!(leading.await.unwrap().unwrap() > leader.term());
    }

    async fn its_future_can_be_spawned_with_what_the_work_borrows(db: &Db) {
        let rowlock = Arc::new(db.rowlock().await);
        let task = tokio::spawn(async move {
            let election = election(&rowlock);
            let mut names = Vec::new();
            let borrowed = &rowlock;
            let target = election.lead(|leadership| {
                names.push(leadership.name().to_string());
                async move {
                    leadership.with(async || borrowed.inspect("scheduler").await).await??;
                    Ok::<_, Error>(ControlFlow::Break(borrowed.target().to_owned()))
                }
            }).await.unwrap();
            (names, target)
        });
        let (names, target) = task.await.unwrap();
        assert_eq!(names, ["scheduler"]);
        assert!(!target.is_empty());
    }
}
