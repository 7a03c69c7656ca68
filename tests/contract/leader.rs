//! Leader election: one candidate leads at a time, terms rise, and a resignation passes the leadership on.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Error, InvalidError, Loss, Rowlock};
use rowlock_recipes::leader::{Election, Leadership};
use rowlock_test::{Db, busy, eventually, loss, on_every_engine, on_tx, queue_is};
use tokio::task::{JoinHandle, JoinSet};

/// Longer than a test takes: only a resignation ends a term.
const TTL: Duration = Duration::from_hours(1);

/// The election, for one candidate.
fn election(rowlock: &Rowlock, candidate: &str) -> Election {
    let election = Election::new(rowlock, "scheduler").ttl(TTL);
    election.candidate(Arc::<str>::from(candidate))
}

/// Leads at once: no other candidate does.
async fn lead(rowlock: &Rowlock, candidate: &str) -> Leadership {
    let asked = election(rowlock, candidate).try_campaign().await.unwrap();
    asked.expect("nobody leads")
}

/// A candidate that waits. It is in the queue, after the others, when this returns.
async fn waits(rowlock: &Rowlock, queue: &[&str]) -> JoinHandle<Result<Leadership, Error>> {
    let election = election(rowlock, queue.last().unwrap());
    let waiting = tokio::spawn(async move { election.campaign().await });
    queue_is(rowlock, "scheduler", queue).await;
    waiting
}

async fn resign(leadership: &Leadership) {
    leadership.resign().await.unwrap();
}

on_every_engine! {
    async fn one_candidate_leads_at_a_time_and_terms_rise(db: &Db) {
        let clients = [db.rowlock().await, db.rowlock().await];
        let (leaders, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicI64::new(0)));
        let mut candidates = JoinSet::new();
        for n in 0..6 {
            // Several candidates of one client have the same text.
            let election = election(&clients[n % 2], &format!("client {}", n % 2));
            let (leaders, last) = (Arc::clone(&leaders), Arc::clone(&last));
            candidates.spawn(async move {
                for _ in 0..4 {
                    let leadership = election.campaign().await.unwrap();
                    assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                    assert!(last.swap(leadership.term(), Ordering::SeqCst) < leadership.term());
                    assert!(leadership.is_leading() && leadership.remaining() > TTL / 2);
                    // Each of them has a term of its own, for all who observe the election.
                    let leader = election.observe().await.unwrap().expect("it leads");
                    assert_eq!(leader.term, leadership.term());
                    assert_eq!(leader.candidate, format!("client {}", n % 2));
                    assert!(leader.since < leader.until && leader.remaining <= TTL + Duration::from_millis(1));
                    leaders.fetch_sub(1, Ordering::SeqCst);
                    resign(&leadership).await;
                    assert!(!leadership.is_leading() && leadership.loss().is_none());
                }
            });
        }
        candidates.join_all().await;
        assert_eq!(election(&clients[0], "one").observe().await.unwrap(), None);
    }

    async fn a_resignation_passes_the_leadership_to_the_first_waiting_candidate(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let first = lead(&one, "first").await;
        let second = waits(&two, &["second"]).await;
        let third = waits(&one, &["second", "third"]).await;
        let busy = busy(election(&two, "late").wait(Duration::ZERO).campaign().await);
        assert_eq!((busy.holder.unwrap().holder.as_str(), busy.waiters), ("first", 2));
        let mut terms = vec![first.term()];
        resign(&first).await;
        for (next, who) in [(second, "second"), (third, "third")] {
            let next = next.await.unwrap().unwrap();
            let leader = election(&two, "late").observe().await.unwrap().unwrap();
            assert_eq!((leader.candidate.as_str(), leader.term), (who, next.term()));
            terms.push(next.term());
            resign(&next).await;
        }
        assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
    }

    async fn a_leadership_that_is_dropped_is_resigned(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let first = lead(&one, "first").await;
        let second = waits(&two, &["second"]).await;
        drop(first);
        let second = second.await.unwrap().unwrap();
        assert!(second.is_leading());
        // And the future of a campaign that is dropped leaves the queue.
        let third = waits(&one, &["third"]).await;
        third.abort();
        queue_is(&two, "scheduler", &[]).await;
        drop(second);
        eventually("nobody leads", async || election(&one, "first").observe().await.unwrap().is_none()).await;
    }

    async fn a_campaign_gives_up_after_its_wait(db: &Db) {
        let rowlock = db.rowlock().await;
        let first = lead(&rowlock, "first").await;
        let late = election(&rowlock, "late").wait(Duration::from_millis(50));
        let Err(error) = late.campaign().await else { panic!("two lead") };
        assert!(matches!(error, Error::WaitTimeout { .. }), "{error}");
        resign(&first).await;
        drop(late.campaign().await.unwrap());
    }

    async fn a_leader_whose_term_has_ended_cannot_commit(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        db.execute("CREATE TABLE plan (term BIGINT NOT NULL)").await;
        let old = lead(&one, "old").await;
        assert_eq!(two.admin().force_release("scheduler").await.unwrap().unwrap().fence, old.term());
        let new = lead(&two, "new").await;
        // The next renewal is far away: only the database knows that the term has ended.
        assert!(old.is_leading());
        for (leadership, is_good) in [(&old, false), (&new, true)] {
            let mut tx = db.begin().await;
            let write = format!("INSERT INTO plan VALUES ({})", leadership.term());
            tx.execute(&write).await.unwrap();
            let pinned = on_tx!(&mut tx, tx => leadership.pin(tx).await);
            if is_good {
                pinned.unwrap();
                tx.commit().await.unwrap();
            } else {
                let lost = pinned.unwrap_err();
                assert!(matches!(lost, Error::Lost { loss: Loss::TakenOver, .. }), "{lost}");
                tx.release().await;
            }
        }
        assert!(!old.is_leading());
        assert_eq!(old.lost().await, Loss::TakenOver);
        old.at_risk().await;
        assert_eq!(loss(old.resign().await), Some(Loss::TakenOver));
        assert!(new.is_leading(), "a late resignation touches no other term");
        assert_eq!(db.number("SELECT term FROM plan").await, new.term());
    }

    async fn a_pin_after_the_resignation_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        let leadership = lead(&rowlock, "one").await;
        assert_eq!(leadership.with(async || 7).await.unwrap(), 7);
        resign(&leadership).await;
        let mut tx = db.begin().await;
        let refused = on_tx!(&mut tx, tx => leadership.pin(tx).await).unwrap_err();
        assert!(matches!(refused, Error::Released { .. }), "{refused}");
        tx.release().await;
        let refused = leadership.with(async || panic!("begun without the leadership")).await;
        assert!(matches!(refused, Err(Error::Released { .. })));
    }

    async fn a_term_ends_at_its_longest_time(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let election = Election::new(&one, "scheduler").max_term(Duration::from_secs(1));
        let first = election.campaign().await.unwrap();
        let second = waits(&two, &["second"]).await;
        first.at_risk().await;
        assert_eq!(first.lost().await, Loss::MaxHold);
        assert!(second.await.unwrap().unwrap().term() > first.term());
    }

    async fn bad_input_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        let refused = async |election: Election| {
            let Err(error) = election.campaign().await else { panic!("it leads") };
            let Err(again) = election.try_campaign().await else { panic!("it leads") };
            let work = async |_| -> Result<ControlFlow<()>, Error> { panic!("it leads") };
            let last = election.lead(work).await.unwrap_err();
            assert_eq!([again.to_string(), last.to_string()], [error.to_string(), error.to_string()]);
            error
        };
        for name in [String::new(), "x".repeat(256), "a\0b".into()] {
            let election = Election::new(&rowlock, name.as_str());
            assert!(matches!(election.observe().await, Err(Error::Invalid(InvalidError::Name { .. }))));
            assert!(matches!(election.observer().next().await, Err(Error::Invalid(InvalidError::Name { .. }))));
            let error = refused(election).await;
            assert!(matches!(error, Error::Invalid(InvalidError::Name { .. })), "{error}");
        }
        let election = Election::new(&rowlock, "scheduler");
        let (short, long) = (Duration::from_millis(99), Duration::MAX);
        for time in [Duration::ZERO, short, long] {
            let error = refused(election.clone().ttl(time)).await;
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "ttl", .. })), "{error}");
            let error = refused(election.clone().max_term(time)).await;
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "max_term", .. })), "{error}");
        }
        let endless = election.clone().wait(long).campaign().await;
        assert!(matches!(endless, Err(Error::Invalid(InvalidError::Duration { setting: "wait", .. }))), "{endless:?}");
        for text in ["", "a\0b", &"x".repeat(201)] {
            let error = refused(election.clone().candidate(text)).await;
            assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "candidate", .. })), "{error}");
        }
        for interval in [Duration::ZERO, Duration::from_millis(9), Duration::from_secs(3_601), long] {
            let error = election.observer().interval(interval).next().await.unwrap_err();
            assert!(matches!(error, Error::Invalid(InvalidError::Duration { setting: "interval", .. })), "{error}");
        }
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_lock").await, 0);
        // The bounds themselves are fine.
        for interval in [Duration::from_millis(10), Duration::from_hours(1)] {
            election.observer().interval(interval).next().await.unwrap();
        }
        // A name of another kind is no election.
        let permit = rowlock.semaphore("scheduler", 3).acquire().await.unwrap();
        let error = refused(election.clone()).await;
        assert!(matches!(error, Error::WrongKind { .. }), "{error}");
        assert_eq!(election.observe().await.unwrap(), None);
        drop(permit);
    }
}
