//! Promise 4: "held" is said only until a local deadline, loss is announced by then even when the
//! database is silent, and a warning comes earlier.
//!
//! Leases last for seconds, so that a machine that is busy for some hundred milliseconds loses none of them.

use std::time::{Duration, Instant};

use rowlock::{Begun, Error, Fingerprint, InvalidError, Loss, Rowlock, Scope};
use rowlock_test::{Db, eventually, loss, on_every_engine, take};

const TTL: Duration = Duration::from_secs(6);

on_every_engine! {
    async fn the_deadline_is_earlier_than_the_expiry_in_the_row(db: &Db) {
        let rowlock = db.rowlock().await;
        let ttl = Duration::from_secs(30);
        let held = take(&rowlock, "a", ttl).await;
        let row = rowlock.inspect("a").await.unwrap().unwrap().remaining;
        // Looked at later, and so no more. (SQLite tells up to a millisecond less than there is.)
        let here = held.remaining();
        assert!(here <= row + Duration::from_millis(1), "{here:?} here, {row:?} in the row");
        // Clocks may run apart by what chronyd does when it slews both as fast as it may.
        assert!(here.mul_f64(13.0 / 11.0) < ttl, "{here:?} here");
    }

    async fn the_deadline_leaves_room_for_the_clock_error(db: &Db) {
        let builder = Rowlock::builder().clock_error(Duration::from_secs(4));
        let rowlock = builder.connect(&db.url).await.unwrap();
        let (ttl, began) = (Duration::from_secs(30), Instant::now());
        let held = take(&rowlock, "a", ttl).await;
        let first = held.remaining();
        let at_first = first + began.elapsed();
        assert!(at_first > Duration::from_secs(18) && first <= Duration::from_secs(21), "{first:?}");
        // A lease of which the error would leave too little is refused, before the database is asked.
        let short = rowlock.lock("b").ttl(Duration::from_secs(8)).try_acquire().await;
        let refused = "ttl = 8s is refused: it must be more than twice the client's clock_error";
        assert_eq!(short.unwrap_err().to_string(), refused);
        let short = rowlock.lock("b").max_hold(Duration::from_secs(8)).try_acquire().await;
        assert!(matches!(short, Err(Error::Invalid(InvalidError::Duration { setting: "max_hold", .. }))), "{short:?}");
        let idempotency = rowlock.idempotency().lease(Duration::from_secs(8));
        let short = idempotency.begin(Scope("s").key("k"), &Fingerprint::of("x")).await;
        assert!(matches!(short, Err(Error::Invalid(InvalidError::Duration { setting: "lease", .. }))), "{short:?}");
        assert_eq!(rowlock.inspect("b").await.unwrap(), None);
        let _enough = take(&rowlock, "b", Duration::from_millis(8_001)).await;
        // An attempt is trusted in the same way.
        let begun = rowlock.idempotency().begin(Scope("s").key("k"), &Fingerprint::of("x")).await.unwrap();
        let Begun::New(attempt) = begun else { panic!("{begun:?}") };
        assert!(attempt.is_held());

        let much = Rowlock::builder().clock_error(Duration::from_secs(3_601));
        let refused = much.connect(&db.url).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(InvalidError::Duration { setting: "clock_error", .. })), "{refused}");
        let most = Rowlock::builder().clock_error(Duration::from_hours(1)).connect(&db.url).await;
        assert!(most.is_ok());
    }

    async fn a_lease_outlives_its_ttl_by_renewals(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let first = held.deadline().to_instant();
        eventually("the deadline has moved by more than a TTL", async || {
            held.deadline().to_instant() > first + TTL * 3 / 2
        })
        .await;
        assert!(held.is_held());
        assert_eq!(two.inspect("a").await.unwrap().unwrap().fence, held.fence());
    }

    async fn a_blocked_runtime_does_not_lose_a_lease(db: &Db) {
        let watcher = db.rowlock().await;
        let ttl = TTL;
        let url = db.url.clone();
        // A runtime of its own, all of whose workers are blocked for longer than a TTL.
        let (blocked, unblock) = (tokio::sync::oneshot::channel(), std::sync::mpsc::channel::<()>());
        let (tell, told) = blocked;
        let (release, wait) = unblock;
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async move {
                let rowlock = Rowlock::connect(&url).await.unwrap();
                let held = take(&rowlock, "a", ttl).await;
                let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
                let workers = [1, 2].map(|_| {
                    let wait = std::sync::Arc::clone(&wait);
                    tokio::spawn(async move {
                        let _ = wait.lock().unwrap().recv();
                    })
                });
                tell.send(held.fence()).unwrap();
                for worker in workers {
                    worker.await.unwrap();
                }
                assert!(held.is_held());
                held.fence()
            })
        });
        let fence = told.await.unwrap();
        let until = Instant::now() + ttl * 3 / 2;
        while Instant::now() < until {
            let lock = watcher.inspect("a").await.unwrap().expect("held all the time");
            assert_eq!(lock.fence, fence);
            tokio::time::sleep(ttl / 100).await;
        }
        drop(release);
        assert_eq!(tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap(), fence);
    }

    async fn a_silent_database_means_a_warning_and_then_the_loss_by_the_deadline(db: &Db) {
        let rowlock = db.rowlock().await;
        // Both come in time, unless the machine stands still for a moment. What is broken never does.
        for round in 0.. {
            let name = format!("a{round}");
            let held = take(&rowlock, &name, TTL).await;
            let row = db.lock_row(&name).await; // no renewal gets through
            held.at_risk().await;
            let (is_warned, left) = (held.is_held(), held.remaining());
            assert!(left <= TTL / 3, "{left:?}");
            let deadline = held.deadline();
            assert_eq!(held.lost().await, Loss::Expired);
            assert!(deadline.has_passed() && !held.is_held());
            // Nobody else can have it yet.
            let is_in_time = rowlock.inspect(name.as_str()).await.unwrap().is_some();
            row.release().await;
            // Final: the row may be ours still, but the lease is not held any more.
            assert!(!held.is_held());
            assert_eq!(held.loss(), Some(Loss::Expired));
            if is_warned && is_in_time {
                break;
            }
        }
    }

    async fn max_hold_ends_a_lease_with_a_warning_before(db: &Db) {
        let rowlock = db.rowlock().await;
        let max_hold = TTL * 7 / 6;
        for round in 0.. {
            let name = format!("a{round}");
            let lock = rowlock.lock(name.as_str()).ttl(TTL).max_hold(max_hold);
            let started = Instant::now();
            let held = lock.acquire().await.unwrap();
            let acquired = Instant::now();
            held.at_risk().await;
            let is_warned = held.is_held();
            assert!(held.deadline().to_instant() <= acquired + max_hold);
            assert_eq!(held.lost().await, Loss::MaxHold);
            assert!(started.elapsed() + TTL / 24 >= max_hold, "{:?}", started.elapsed());
            let is_free = async || rowlock.inspect(name.as_str()).await.unwrap().is_none();
            eventually("the name is free", is_free).await;
            if is_warned {
                break;
            }
        }
    }

    async fn a_lease_with_a_max_hold_is_renewed_and_so_learns_of_a_takeover(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let lock = one.lock("a").max_hold(Duration::from_secs(6));
        let held = lock.try_acquire().await.unwrap().unwrap();
        assert!(two.admin().force_release("a").await.unwrap().is_some());
        assert_eq!(held.lost().await, Loss::TakenOver);
    }

    async fn with_stops_the_work_when_the_lease_is_lost(db: &Db) {
        struct Told(Option<tokio::sync::oneshot::Sender<()>>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.take().unwrap().send(());
            }
        }
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        assert_eq!(held.with(async || 7).await.unwrap(), 7);
        assert!(rowlock.admin().force_release("a").await.unwrap().is_some());
        let (tell, told) = tokio::sync::oneshot::channel();
        let told_guard = Told(Some(tell));
        let result = held.with(async move || {
            let _guard = told_guard;
            std::future::pending::<()>().await;
        }).await;
        assert!(matches!(result, Err(Error::Lost { loss: Loss::TakenOver, .. })), "{result:?}");
        told.await.unwrap(); // the work was dropped
        // And on a lease that is lost nothing is begun.
        let begun = held.with(async || panic!("begun without the lock")).await;
        assert!(matches!(begun, Err(Error::Lost { .. })));
    }

    async fn futures_can_be_spawned(db: &Db) {
        let rowlock = db.rowlock().await;
        let task = tokio::spawn(async move {
            let me = rowlock.owner();
            let held = rowlock.lock("a").owner(&me).acquire().await.unwrap();
            let name = held.with(async || held.name().to_string()).await.unwrap();
            let _ = loss(held.release().await);
            name
        });
        assert_eq!(task.await.unwrap(), "a");
    }
}
