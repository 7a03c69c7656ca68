//! A name that nobody uses is forgotten: it may be of another kind afterwards, and its fences go on rising. A name in
//! use is not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowlock::{Advance, Error, Rowlock};
use rowlock_test::{Db, join, on_every_engine, release, take};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);

async fn rows(db: &Db) -> i64 {
    db.number("SELECT COUNT(*) FROM rowlock_lock").await
}

/// Forgetting is refused, because the name is in use.
async fn is_refused(rowlock: &Rowlock, name: &str) {
    let refused = rowlock.admin().forget(name).await.unwrap_err();
    let is_busy = matches!(&refused, Error::WaitTimeout { name: of, .. } if of.as_str() == name);
    assert!(is_busy, "{refused}");
    let said = refused.to_string();
    assert!(
        said.starts_with(&format!("{name:?} is not free: ")),
        "{said}"
    );
}

on_every_engine! {
    async fn a_name_that_is_forgotten_may_be_of_another_kind_and_its_fences_rise(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        assert!(!two.admin().forget("n").await.unwrap(), "it was never used");
        let held = take(&one, "n", TTL).await;
        release(&held).await;
        assert!(matches!(one.semaphore("n", 3).try_acquire().await, Err(Error::WrongKind { .. })));
        assert!(two.admin().forget("n").await.unwrap());
        assert!(!two.admin().forget("n").await.unwrap());
        assert_eq!(rows(db).await, 0);

        let permit = one.semaphore("n", 3).acquire().await.unwrap();
        assert!(permit.fence() > held.fence());
        release(&permit).await;
        assert!(two.admin().forget("n").await.unwrap());
        let writer = one.rw_lock("n").write().await.unwrap();
        assert!(writer.fence() > permit.fence());
        release(&writer).await;
        assert!(two.admin().forget("n").await.unwrap());
        let again = take(&one, "n", TTL).await;
        assert!(again.fence() > writer.fence());
        assert!(two.admin().forget("").await.is_err());
    }

    async fn a_version_from_before_does_not_advance(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        release(&take(&one, "n", TTL).await).await;
        let seen = one.version("n").await.unwrap();
        assert!(two.admin().forget("n").await.unwrap());
        let mut tx = db.begin().await;
        let advanced = tx.advance(&one, &seen).await;
        assert!(matches!(advanced, Ok(Advance::Conflict)), "{advanced:?}");
        tx.release().await;
        assert!(two.admin().forget("n").await.is_ok());
        let mut tx = db.begin().await;
        let locked = tx.lock(&one, "n").await;
        assert!(locked.fence() > seen.fence());
        tx.commit().await.unwrap();
    }

    async fn a_name_in_use_is_not_forgotten(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "lock", TTL).await;
        is_refused(&two, "lock").await;
        let session = one.lock("session").in_session().acquire().await.unwrap();
        is_refused(&two, "session").await;
        let permit = one.semaphore("semaphore", 3).acquire().await.unwrap();
        is_refused(&two, "semaphore").await;
        let reader = one.rw_lock("shared").read().await.unwrap();
        is_refused(&two, "shared").await;
        for held in [&held, &session, &permit, &reader] {
            assert!(held.is_held());
            release(held).await;
        }

        // Also while a transaction has locked it, or pinned a lease of it that has run out.
        let held = take(&one, "lock", TTL).await;
        let mut tx = db.begin().await;
        tx.pin(&held).await.unwrap();
        let quick = Rowlock::builder().operation_timeout(Duration::from_secs(3));
        let quick = quick.connect(&db.url).await.unwrap();
        assert!(quick.admin().forget("lock").await.is_err());
        tx.commit().await.unwrap();
        release(&held).await;
        if !db.one_writer() {
            let mut tx = db.begin().await;
            let locked = tx.lock(&one, "lock").await;
            is_refused(&two, "lock").await;
            drop(locked);
            tx.commit().await.unwrap();
        }
        assert!(two.admin().forget("lock").await.unwrap());
    }

    async fn a_name_that_is_waited_for_is_not_forgotten(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "n", TTL).await;
        let waiting = join(&one, "n", "waiter").await;
        is_refused(&two, "n").await;
        release(&held).await;
        let next = waiting.await.unwrap().unwrap();
        assert!(next.is_held());
        release(&next).await;
        assert!(two.admin().forget("n").await.unwrap());
    }

    async fn fences_rise_while_a_name_is_forgotten_again_and_again(db: &Db) {
        for kind in ["lock", "semaphore"] {
            let granted = Arc::new(Mutex::new(Vec::new()));
            let mut tasks = JoinSet::new();
            for _ in 0..3 {
                let (rowlock, granted) = (db.rowlock().await, Arc::clone(&granted));
                tasks.spawn(async move {
                    for _ in 0..15 {
                        let held = match kind {
                            "lock" => rowlock.lock(kind).acquire().await.unwrap(),
                            _ => rowlock.semaphore(kind, 1).acquire().await.unwrap(),
                        };
                        granted.lock().unwrap().push(held.fence());
                        release(&held).await;
                    }
                });
            }
            let rowlock = db.rowlock().await;
            while !tasks.is_empty() {
                match rowlock.admin().forget(kind).await {
                    Ok(_) | Err(Error::WaitTimeout { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                while let Some(done) = tasks.try_join_next() {
                    done.unwrap();
                }
            }
            let granted = granted.lock().unwrap();
            assert_eq!(granted.len(), 45);
            assert!(granted.is_sorted_by(|one, next| one < next), "{granted:?}");
        }
    }

    async fn what_a_crash_has_left_behind_is_forgotten_once_it_is_over(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = (
            take(&one, "lease", TTL).await,
            one.semaphore("semaphore", 2).acquire().await.unwrap(),
            one.rw_lock("shared").write().await.unwrap(),
        );
        let past = db.past();
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = {past} WHERE grant_id IS NOT NULL")).await;
        for name in ["lease", "semaphore", "shared"] {
            assert!(two.admin().forget(name).await.unwrap(), "{name}");
        }
        assert_eq!(rows(db).await, 0);
        drop(held);
    }
}
