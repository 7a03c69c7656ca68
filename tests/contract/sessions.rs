//! Locks in a session live as long as the session, which is never revived.

use std::time::Duration;

use rowlock::{Error, Held, InvalidError, Loss, Rowlock};
use rowlock_test::{Db, busy, eventually, on_every_engine, renewed};

/// A session that outlives the test.
const LONG: Duration = Duration::from_mins(10);
/// A session that is renewed within the test.
const SHORT: Duration = Duration::from_secs(8);

async fn client(db: &Db, session_ttl: Duration) -> Rowlock {
    // Some tests count what a cleaning removes.
    let builder = Rowlock::builder()
        .session_ttl(session_ttl)
        .clean_every(None);
    builder.connect(&db.url).await.unwrap()
}

async fn take(rowlock: &Rowlock, name: &str) -> Held {
    let lock = rowlock.lock(name).in_session();
    let taken = lock.try_acquire().await.unwrap();
    taken.expect("free")
}

/// The sessions of all clients have expired, by the database's clock. No client knows it.
async fn expire_sessions(db: &Db) {
    let past = db.past();
    db.execute(&format!("UPDATE rowlock_session SET expires_at = {past}"))
        .await;
}

const FREE: &str = "UPDATE rowlock_lock \
    SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL, session_id = NULL";

async fn rows(db: &Db) -> i64 {
    db.number("SELECT COUNT(*) FROM rowlock_session").await
}

on_every_engine! {
    async fn one_session_keeps_all_its_locks(db: &Db) {
        let (one, two) = (client(db, SHORT).await, client(db, SHORT).await);
        let mut held = Vec::new();
        for n in 0..20 {
            held.push(take(&one, &format!("n{n:02}")).await);
        }
        let [session] = &*one.admin().sessions().await.unwrap() else { panic!("one session") };
        assert_eq!(session.locks, 20);
        for _ in 0..4 {
            renewed(&held[0]).await;
        }
        let list = two.admin().list().await.unwrap();
        assert_eq!(list.len(), 20);
        for (held, info) in held.iter().zip(&list) {
            assert!(held.is_held());
            assert_eq!((held.name(), held.fence()), (&info.name, info.fence));
            assert_eq!(info.session, Some(session.id));
            assert!(info.remaining <= SHORT, "{info:?}");
            assert!(held.remaining() <= SHORT, "{held:?}");
        }
        let busy = busy(two.lock("n00").wait(Duration::ZERO).acquire().await);
        assert_eq!(busy.holder.unwrap().session, Some(session.id));
    }

    /// Nobody knows whether a failover has lost its grant.
    async fn a_lock_that_cannot_be_looked_at_is_not_trusted_for_ever(db: &Db) {
        let one = client(db, SHORT).await;
        let held = take(&one, "a").await;
        renewed(&held).await;
        db.execute("ALTER TABLE rowlock_lock RENAME TO away").await;
        assert_eq!(held.lost().await, Loss::Expired);
        assert_eq!(rows(db).await, 1, "the session is renewed");
        db.execute("ALTER TABLE away RENAME TO rowlock_lock").await;
    }

    async fn a_released_lock_is_free_and_leaves_the_others_alone(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        let (a, b) = (take(&one, "a").await, take(&one, "b").await);
        a.release().await.unwrap();
        a.release().await.unwrap();
        let after = take(&two, "a").await;
        assert!(after.fence() > a.fence());
        drop(after);
        two.flush().await;
        assert!(b.is_held());
        // A lease may follow a lock in a session, and the reverse.
        let lease = two.lock("a").try_acquire().await.unwrap().expect("free");
        assert_eq!(two.inspect("a").await.unwrap().unwrap().session, None);
        drop(lease);
        two.flush().await;
        let again = take(&one, "a").await;
        assert!(again.fence() > a.fence());
    }

    async fn ending_a_session_frees_all_its_locks_at_once(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        assert_eq!(one.end_session().await.unwrap(), 0);
        let held = [take(&one, "a").await, take(&one, "b").await, take(&one, "c").await];
        let lease = one.lock("lease").try_acquire().await.unwrap().expect("free");
        assert_eq!(one.end_session().await.unwrap(), 3);
        assert_eq!(rows(db).await, 0);
        for held in &held {
            assert_eq!(held.loss(), Some(Loss::SessionEnded));
            assert_eq!(held.lost().await, Loss::SessionEnded);
            assert!(!held.is_held());
            assert!(held.remaining().is_zero());
        }
        assert!(lease.is_held(), "it has a TTL of its own");
        let after = take(&two, "a").await;
        assert!(after.fence() > held[0].fence());
        for held in &held {
            assert!(matches!(held.release().await, Err(Error::Lost { loss: Loss::SessionEnded, .. })));
        }
        assert!(after.is_held());
        // The next lock is in a new session.
        let next = take(&one, "b").await;
        assert!(next.fence() > held[1].fence());
        assert_eq!(one.end_session().await.unwrap(), 1);
        assert_eq!(one.end_session().await.unwrap(), 0);
    }

    async fn an_expired_session_loses_all_its_locks_and_is_never_revived(db: &Db) {
        let (one, two) = (client(db, Duration::from_secs(3)).await, client(db, LONG).await);
        let held = [take(&one, "a").await, take(&one, "b").await];
        expire_sessions(db).await;
        assert!(two.admin().list().await.unwrap().is_empty());
        assert_eq!(two.inspect("a").await.unwrap(), None);
        let after = take(&two, "a").await;
        assert!(after.fence() > held[0].fence());
        for held in &held {
            assert_eq!(held.lost().await, Loss::Expired);
        }
        assert!(after.is_held());
        // No other client asked for the second lock. The first session's lock is not revived either: the new lock has
        // another session.
        let next = take(&one, "b").await;
        assert!(next.fence() > held[1].fence());
        assert!(next.is_held() && !held[1].is_held());
    }

    async fn a_session_that_was_ended_by_another_client_is_not_revived_by_a_renewal(db: &Db) {
        let (one, two) = (client(db, Duration::from_secs(3)).await, client(db, LONG).await);
        let held = take(&one, "a").await;
        expire_sessions(db).await;
        let after = take(&two, "a").await;
        // The clock is set back.
        let future = db.future();
        db.execute(&format!(
            "UPDATE rowlock_session SET expires_at = {future} WHERE expires_at IS NOT NULL"
        ))
        .await;
        assert_eq!(held.lost().await, Loss::Expired);
        assert!(after.is_held());
    }

    async fn a_waiter_gets_the_lock_of_a_session_that_expires(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        let held = take(&one, "a").await;
        let lock = two.lock("a").wait(Duration::from_secs(20));
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let soon = db.soon();
        db.execute(&format!("UPDATE rowlock_session SET expires_at = {soon}")).await;
        let after = waiting.await.unwrap().unwrap();
        assert!(after.fence() > held.fence());
    }

    async fn a_transaction_gets_the_lock_of_an_expired_session(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        let held = [take(&one, "a").await, take(&one, "b").await];
        let mut tx = db.begin().await;
        let busy = tx.try_lock(&two, "a").await.unwrap();
        assert!(matches!(busy, rowlock_test::TryLock::Busy(_)), "{busy:?}");
        tx.release().await;
        expire_sessions(db).await;
        let mut tx = db.begin().await;
        let locked = tx.lock_all(&two, &["a", "b"]).await.unwrap();
        let rowlock_test::TryLock::Locked(locked) = locked else { panic!("{locked:?}") };
        assert!(locked.fences().zip(&held).all(|((_, fence), held)| fence > held.fence()));
        tx.commit().await.unwrap();
    }

    async fn a_pinned_lock_stays_with_its_holder_when_the_session_expires(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        let held = take(&one, "a").await;
        let unpinned = take(&one, "b").await;
        expire_sessions_but_keep_pinned(db, &two, [&held, &unpinned]).await;
    }

    async fn a_lock_that_is_freed_by_force_is_lost_alone(db: &Db) {
        let (one, two) = (client(db, SHORT).await, client(db, LONG).await);
        let held = [take(&one, "a").await, take(&one, "b").await];
        // The first renewal over a connection looks at all grants anyway.
        renewed(&held[1]).await;
        let freed = two.admin().force_release("a").await.unwrap().unwrap();
        assert_eq!(freed.fence, held[0].fence());
        let after = take(&two, "a").await;
        assert_eq!(held[0].lost().await, Loss::TakenOver);
        renewed(&held[1]).await;
        assert!(held[1].is_held() && after.is_held());
    }

    async fn a_lock_that_is_freed_by_force_and_taken_again_has_one_guard(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        let first = take(&one, "a").await;
        two.admin().force_release("a").await.unwrap().unwrap();
        let second = take(&one, "a").await;
        assert_eq!((first.loss(), second.loss()), (Some(Loss::TakenOver), None));
    }

    async fn a_guard_whose_grant_the_database_has_lost_learns_it(db: &Db) {
        let one = client(db, SHORT).await;
        let held = [take(&one, "a").await, take(&one, "b").await];
        renewed(&held[1]).await;
        // A failover behind a pooler: no connection broke, and no number has changed.
        db.execute(&format!("{FREE} WHERE name = {}", db.bytes("a"))).await;
        assert_eq!(held[0].lost().await, Loss::TakenOver);
        renewed(&held[1]).await;
    }

    async fn a_name_whose_release_the_database_has_lost_is_free_again(db: &Db) {
        let two = client(db, LONG).await;
        let builder = Rowlock::builder().session_ttl(Duration::from_secs(9));
        // A release that is not answered by then was given up.
        let builder = builder.operation_timeout(Duration::from_secs(3));
        let one = builder.connect(&db.url).await.unwrap();
        let (a, b) = (take(&one, "a").await, take(&one, "b").await);
        let name = db.bytes("a");
        db.execute(&format!("CREATE TABLE saved AS SELECT * FROM rowlock_lock WHERE name = {name}")).await;
        a.release().await.unwrap();
        let columns = ["grant_id", "holder", "acquired_at", "expires_at", "session_id"];
        let columns = columns.map(|column| format!("{column} = (SELECT {column} FROM saved)"));
        db.execute(&format!("UPDATE rowlock_lock SET {} WHERE name = {name}", columns.join(", "))).await;
        let after = two.lock("a").wait(Duration::from_secs(20)).acquire().await.unwrap();
        assert!(after.fence() > a.fence());
        assert!(b.is_held());
    }

    async fn a_lock_in_a_session_is_lost_at_its_max_hold(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        let second = Duration::from_secs(1);
        let lock = one.lock("a").in_session().max_hold(second);
        let held = lock.try_acquire().await.unwrap().expect("free");
        let other = take(&one, "b").await;
        assert!(held.remaining() <= second);
        assert_eq!(held.lost().await, Loss::MaxHold);
        // The first guard lives: it has not released the lock.
        let after = two.lock("a").wait(Duration::from_secs(20)).acquire().await.unwrap();
        assert!(after.fence() > held.fence());
        assert!(other.is_held());
    }

    async fn an_owner_enters_its_lock_in_a_session_again(db: &Db) {
        let rowlock = client(db, LONG).await;
        let me = rowlock.owner();
        let lock = rowlock.lock("a").owner(&me).in_session();
        let outer = lock.acquire().await.unwrap();
        let inner = lock.acquire().await.unwrap();
        assert_eq!(inner.fence(), outer.fence());
        assert_eq!(rowlock.end_session().await.unwrap(), 1);
        assert!(!inner.is_held() && !outer.is_held());
        let next = lock.acquire().await.unwrap();
        assert!(next.fence() > outer.fence());
    }

    async fn closing_a_client_leaves_no_session(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        let held = take(&one, "a").await;
        let unfinished = one.shutdown(Duration::from_secs(10)).await;
        assert_eq!(unfinished.len(), 1, "{unfinished:?}");
        assert!(held.is_held(), "a guard that is left stays good");
        drop(held);
        let unfinished = one.shutdown(Duration::from_secs(10)).await;
        assert!(unfinished.is_empty(), "{unfinished:?}");
        assert_eq!(rows(db).await, 0);
        let held = take(&two, "a").await;
        assert_eq!(rows(db).await, 1);
        drop(two);
        assert!(held.is_held());
        drop(held);
        eventually("the last guard ends the session", async || rows(db).await == 0).await;
    }

    async fn cleaning_frees_what_expired_sessions_have_left_behind(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        let held = [take(&one, "a").await, take(&one, "b").await];
        assert_eq!(two.admin().clean(10).await.unwrap().sessions, 0);
        expire_sessions(db).await;
        let live = take(&two, "c").await;
        assert_eq!(two.admin().clean(10).await.unwrap().sessions, 3, "a session and its two locks");
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_lock WHERE grant_id IS NULL").await, 2);
        assert_eq!(rows(db).await, 1);
        assert!(live.is_held());
        drop(held);
    }

    async fn a_lock_of_a_session_whose_row_is_gone_is_free(db: &Db) {
        let (one, two) = (client(db, LONG).await, client(db, LONG).await);
        let held = take(&one, "a").await;
        db.execute("DELETE FROM rowlock_session").await;
        assert_eq!(two.inspect("a").await.unwrap(), None);
        assert!(take(&two, "a").await.fence() > held.fence());
    }

    async fn settings_that_do_not_fit_a_session_are_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        let lock = rowlock.lock("a").in_session().ttl(LONG);
        let error = lock.try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(InvalidError::Setting { setting: "ttl", .. })), "{error}");
        for ttl in [Duration::from_millis(99), Duration::from_hours(25)] {
            let error = Rowlock::builder().session_ttl(ttl).connect(&db.url).await.unwrap_err();
            assert!(error.to_string().contains("session_ttl"), "{error}");
        }
        let second = Duration::from_secs(1);
        let builder = Rowlock::builder().session_ttl(2 * second).clock_error(second);
        let rowlock = builder.connect(&db.url).await.unwrap();
        let error = rowlock.lock("a").in_session().try_acquire().await.unwrap_err();
        assert!(error.to_string().contains("session_ttl"), "{error}");
        assert!(rowlock.lock("a").try_acquire().await.unwrap().is_some());
    }
}

/// The session expires while a transaction has one of its locks pinned: no other client gets that lock, and the
/// session's other locks are free.
async fn expire_sessions_but_keep_pinned(db: &Db, other: &Rowlock, [held, unpinned]: [&Held; 2]) {
    let mut tx = db.begin().await;
    if db.one_writer() {
        // No other session could let it expire while the transaction is open.
        tx.pin(held).await.unwrap();
    } else {
        tx.pin(held).await.unwrap();
        expire_sessions(db).await;
        assert!(take(other, unpinned.name().as_str()).await.fence() > unpinned.fence());
    }
    let taken = other.lock("a").try_acquire().await;
    assert!(!matches!(taken, Ok(Some(_))), "{taken:?}");
    tx.commit().await.unwrap();
    if db.one_writer() {
        expire_sessions(db).await;
    }
    let after = other
        .lock("a")
        .wait(Duration::from_secs(20))
        .acquire()
        .await
        .unwrap();
    assert!(after.fence() > held.fence());
}
