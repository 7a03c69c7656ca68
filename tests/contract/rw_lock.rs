//! Promises 1 and 6, for read/write locks: many readers or one writer, and nobody starves.

use std::time::Duration;

use rowlock::{Error, Loss, Mode, RwHeld, RwLock};
use rowlock_test::{Db, eventually, on_every_engine, queue_of, release};
use tokio::task::{JoinHandle, JoinSet};

/// A lease that runs out within the test.
const SHORT: Duration = Duration::from_secs(4);

/// A task that waits. It is in the queue when this returns.
async fn join(lock: &RwLock, db: &Db, mode: Mode, holder: &str) -> JoinHandle<RwHeld> {
    let waits = lock.clone().holder(holder.to_owned());
    let waiting = tokio::spawn(async move {
        let held = if mode == Mode::Write {
            waits.write().await
        } else {
            waits.read().await
        };
        held.unwrap()
    });
    let watcher = db.rowlock().await;
    eventually("it is in the queue", async || {
        queue_of(&watcher, "c")
            .await
            .iter()
            .any(|waiter| waiter == holder)
    })
    .await;
    waiting
}

on_every_engine! {
    async fn readers_share_and_writers_do_not(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let (here, there) = (one.rw_lock("c"), two.rw_lock("c"));
        let readers = [here.read().await.unwrap(), there.read().await.unwrap(), there.try_read().await.unwrap().expect("readers share")];
        assert!(readers.iter().all(|reader| reader.mode() == Mode::Read));
        assert!(readers.iter().all(|reader| reader.fence() == readers[0].fence()), "that of the last write");
        assert!(there.try_write().await.unwrap().is_none());
        for reader in &readers {
            release(reader).await;
        }
        let writer = here.write().await.unwrap();
        assert!(writer.fence() > readers[0].fence());
        assert!(there.try_write().await.unwrap().is_none() && there.try_read().await.unwrap().is_none());
        let list = two.admin().list().await.unwrap();
        assert_eq!((list.len(), list[0].mode), (1, Mode::Write));
        release(&writer).await;
        let reader = there.read().await.unwrap();
        assert_eq!(reader.fence(), writer.fence());
        assert!(there.try_write().await.unwrap().is_none());
    }

    /// A release lets some of them in, and the looks of the others find the rest.
    async fn hundreds_of_readers_all_get_in_after_a_writer(db: &Db) {
        const READERS: usize = 250;
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let writer = one.rw_lock("c").write().await.unwrap();
        let mut readers = JoinSet::new();
        for number in 0..READERS {
            let lock = [&one, &two][number % 2].rw_lock("c");
            readers.spawn(async move { lock.read().await.unwrap() });
        }
        eventually("they wait", async || queue_of(&one, "c").await.len() == READERS).await;
        release(&writer).await;
        // Each holds on until all have it.
        let held = readers.join_all().await;
        assert!(held.iter().all(|reader| reader.fence() == writer.fence() && reader.is_held()));
        assert_eq!(held.len(), READERS);
    }

    async fn a_writer_that_waits_keeps_new_readers_back(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let lock = one.rw_lock("c");
        let reader = lock.read().await.unwrap();
        let writer = join(&two.rw_lock("c"), db, Mode::Write, "writer").await;
        assert!(lock.try_read().await.unwrap().is_none());
        let behind = [
            join(&lock, db, Mode::Read, "behind 1").await,
            join(&two.rw_lock("c"), db, Mode::Read, "behind 2").await,
        ];
        let second = join(&lock, db, Mode::Write, "second").await;
        release(&reader).await;
        let writer = writer.await.unwrap();
        assert_eq!(queue_of(&one, "c").await.len(), 3);
        release(&writer).await;
        let mut readers = Vec::new();
        for reader in behind {
            readers.push(reader.await.unwrap());
        }
        assert!(readers.iter().all(|reader| reader.is_held() && reader.fence() == writer.fence()));
        assert_eq!(queue_of(&one, "c").await, ["second"]);
        drop(readers);
        assert!(second.await.unwrap().fence() > writer.fence());
    }

    async fn a_downgrade_lets_readers_in_and_no_writer(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let mut writer = one.rw_lock("c").write().await.unwrap();
        let reader = join(&two.rw_lock("c"), db, Mode::Read, "reader").await;
        let other = join(&two.rw_lock("c"), db, Mode::Write, "other").await;
        let fence = writer.fence();
        writer.downgrade().await.unwrap();
        assert_eq!((writer.mode(), writer.fence(), writer.is_held()), (Mode::Read, fence, true));
        let reader = reader.await.unwrap();
        assert_eq!(reader.fence(), fence);
        writer.downgrade().await.unwrap();
        release(&writer).await;
        release(&reader).await;
        assert!(other.await.unwrap().fence() > fence);
    }

    async fn a_lone_reader_becomes_a_writer(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let mut reader = one.rw_lock("c").read().await.unwrap();
        let mut other = two.rw_lock("c").read().await.unwrap();
        // Two readers that both want to: neither waits for the other.
        assert!(!reader.try_upgrade().await.unwrap());
        assert!(!other.try_upgrade().await.unwrap());
        assert_eq!(reader.mode(), Mode::Read);
        let waiting = join(&two.rw_lock("c"), db, Mode::Write, "writer").await;
        release(&other).await;
        let before = reader.fence();
        assert!(reader.try_upgrade().await.unwrap());
        assert_eq!(reader.mode(), Mode::Write);
        assert!(reader.fence() > before && reader.try_upgrade().await.unwrap());
        assert!(two.rw_lock("c").try_read().await.unwrap().is_none());
        let fence = reader.fence();
        release(&reader).await;
        assert!(waiting.await.unwrap().fence() > fence);
        let error = reader.try_upgrade().await.unwrap_err();
        assert!(matches!(error, Error::Released { .. }), "{error}");
    }

    async fn an_operator_sees_all_readers_or_the_writer(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let readers = [one.rw_lock("c").read().await.unwrap(), two.rw_lock("c").read().await.unwrap()];
        let holders = two.admin().holders("c").await.unwrap();
        assert_eq!(holders.len(), 2);
        assert!(holders.iter().all(|info| info.mode == Mode::Read && info.fence == readers[0].fence()), "{holders:?}");
        assert_eq!(two.inspect("c").await.unwrap().expect("it is held").mode, Mode::Read);
        for reader in &readers {
            release(reader).await;
        }
        assert_eq!(two.inspect("c").await.unwrap(), None);
        let writer = one.rw_lock("c").write().await.unwrap();
        let holders = two.admin().holders("c").await.unwrap();
        assert_eq!(holders.len(), 1);
        assert_eq!((holders[0].mode, holders[0].fence), (Mode::Write, writer.fence()));
        let freed = two.admin().force_release("c").await.unwrap().expect("it was held");
        assert_eq!(freed.mode, Mode::Write);
        assert!(two.admin().holders("c").await.unwrap().is_empty());
    }

    async fn a_lease_that_was_lost_is_not_changed(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut reader = rowlock.rw_lock("c").read().await.unwrap();
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = {} WHERE weight > 0", db.past())).await;
        let error = reader.try_upgrade().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert!(!reader.is_held());
        let error = reader.downgrade().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert!(rowlock.rw_lock("c").write().await.unwrap().is_held());
    }

    async fn a_pinned_reader_delays_no_other_reader_and_no_renewal(db: &Db) {
        if db.one_writer() {
            return; // there, a transaction that writes delays everybody
        }
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let lock = one.rw_lock("c").ttl(SHORT);
        let (pinned, other) = (lock.read().await.unwrap(), lock.read().await.unwrap());
        let mut tx = db.begin().await;
        tx.pin(&pinned).await.unwrap();
        let third = two.rw_lock("c").read().await.unwrap();
        let first = other.deadline();
        eventually("the other reader is renewed", async || other.deadline() > first).await;
        eventually("the pinned one runs out", async || pinned.loss() == Some(Loss::Expired)).await;
        assert!(other.is_held() && third.is_held());
        drop((other, third));
        // It is pinned: it keeps writers out.
        let wait = two.rw_lock("c").wait(Duration::from_millis(300));
        let error = wait.write().await.unwrap_err();
        assert!(matches!(error, Error::WaitTimeout { .. }), "{error}");
        tx.commit().await.unwrap();
        assert!(two.rw_lock("c").write().await.unwrap().is_held());
    }

    async fn a_name_of_another_kind_is_refused(db: &Db) {
        let rowlock = db.rowlock().await;
        let reader = rowlock.rw_lock("c").read().await.unwrap();
        for error in [
            rowlock.lock("c").try_acquire().await.unwrap_err(),
            rowlock.semaphore("c", 2).acquire().await.unwrap_err(),
            rowlock.semaphore("c", 2).set_capacity().await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::WrongKind { .. }), "{error}");
            assert!(error.to_string().contains("is a read/write lock"), "{error}");
        }
        drop(reader);
        assert!(rowlock.lock("other").try_acquire().await.unwrap().is_some());
    }
}
