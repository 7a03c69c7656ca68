//! `#[locked]`: a function that holds a lock while it runs keeps the promises of the calls that it stands for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rowlock::{Error, Loss, Rowlock, locked};
use rowlock_test::{Db, eventually, on_every_engine, on_tx, release, take};
use tokio::sync::{Notify, oneshot};

const TTL: Duration = Duration::from_secs(30);

/// How the body of a function ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Value,
    Return,
    Error,
    ReturnedError,
}

/// The error of an application.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Rowlock(#[from] Error),
    #[error("out of stock")]
    OutOfStock,
}

fn out_of_stock() -> Result<(), Failed> {
    Err(Failed::OutOfStock)
}

#[locked(name = "stock:{id}")]
async fn sell(rowlock: &Rowlock, id: u32, end: End) -> Result<i64, Failed> {
    assert_eq!(held.name().as_str(), format!("stock:{id}"));
    assert!(held.is_held() && rowlock.inspect(held.name().clone()).await?.is_some());
    match end {
        End::Value => {}
        End::Return => return Ok(held.fence()),
        End::Error => out_of_stock()?,
        End::ReturnedError => return Err(Failed::OutOfStock),
    }
    Ok(held.fence())
}

/// Work that tells when it begins, and when it is dropped.
#[derive(Debug)]
struct Work {
    begun: Arc<Notify>,
    dropped: Option<oneshot::Sender<()>>,
}

impl Work {
    fn new() -> (Self, Arc<Notify>, oneshot::Receiver<()>) {
        let (tell, dropped) = oneshot::channel();
        let begun = Arc::new(Notify::new());
        let work = Self {
            begun: Arc::clone(&begun),
            dropped: Some(tell),
        };
        (work, begun, dropped)
    }

    async fn for_ever(self) {
        self.begun.notify_one();
        std::future::pending::<()>().await;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = self.dropped.take().unwrap().send(());
    }
}

#[locked(name = "a", ttl = "3s")]
async fn work_for_ever(rowlock: Rowlock, work: Work) -> Result<(), Error> {
    work.for_ever().await;
    Ok(())
}

#[locked(name = "a", ttl = "30s", max_hold = "3s")]
async fn work_too_long(rowlock: Rowlock, work: Work) -> Result<(), Error> {
    work.for_ever().await;
    Ok(())
}

#[locked(name = "a", wait = "200ms")]
async fn wait_a_little(rowlock: &Rowlock) -> Result<(), Error> {
    panic!("it runs without {}", held.name());
}

#[locked(name = "a", wait = "0s")]
async fn ask_once(rowlock: &Rowlock) -> Result<i64, Error> {
    Ok(held.fence())
}

#[locked(name = "a")]
async fn enter(
    rowlock: Rowlock,
    inside: Arc<AtomicBool>,
    entered: Arc<AtomicU32>,
) -> Result<i64, Error> {
    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
    tokio::task::yield_now().await;
    entered.fetch_add(1, Ordering::SeqCst);
    inside.store(false, Ordering::SeqCst);
    Ok(held.fence())
}

#[locked(name = "a")]
async fn write_under_a_pin(rowlock: &Rowlock, db: &Db) -> Result<(), Error> {
    let mut tx = db.begin().await;
    on_tx!(&mut tx, tx => held.pin(tx).await)?;
    tx.execute("INSERT INTO app VALUES (1)").await.unwrap();
    tx.commit().await.unwrap();
    Ok(())
}

on_every_engine! {
    async fn functions_under_a_lock_never_overlap(db: &Db) {
        let (inside, entered) = (Arc::default(), Arc::default());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let rowlock = db.rowlock().await;
            for _ in 0..10 {
                tasks.spawn(enter(rowlock.clone(), Arc::clone(&inside), Arc::clone(&entered)));
            }
        }
        let mut fences: Vec<i64> = tasks.join_all().await.into_iter().map(Result::unwrap).collect();
        assert_eq!(entered.load(Ordering::SeqCst), 30);
        fences.sort_unstable();
        fences.dedup();
        assert_eq!(fences.len(), 30, "each has a fence of its own");
    }

    async fn the_lock_of_a_function_is_free_when_it_has_returned_however_it_does(db: &Db) {
        let rowlock = db.rowlock().await;
        let mut last = 0;
        for end in [End::Value, End::Error, End::Return, End::ReturnedError, End::Value] {
            match sell(&rowlock, 42, end).await {
                Ok(fence) => {
                    assert!(fence > last, "the fence rises");
                    last = fence;
                }
                Err(Failed::OutOfStock) => assert!(matches!(end, End::Error | End::ReturnedError)),
                Err(Failed::Rowlock(error)) => panic!("{error}"),
            }
            assert_eq!(rowlock.inspect("stock:42").await.unwrap(), None, "{end:?}");
        }
    }

    async fn a_function_does_not_run_when_its_wait_is_over(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let error = wait_a_little(&two).await.unwrap_err();
        let Error::WaitTimeout { waited, .. } = error else { panic!("{error}") };
        assert!(waited >= Duration::from_millis(200), "{waited:?}");
        let error = ask_once(&two).await.unwrap_err();
        let Error::WaitTimeout { busy, .. } = error else { panic!("{error}") };
        assert_eq!(busy.holder.unwrap().fence, held.fence());
        held.release().await.unwrap();
        assert!(ask_once(&two).await.unwrap() > held.fence());
    }

    async fn the_body_is_dropped_when_the_lock_is_lost(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let (work, begun, dropped) = Work::new();
        let running = tokio::spawn(work_for_ever(one, work));
        begun.notified().await;
        assert!(two.admin().force_release("a").await.unwrap().is_some());
        let error = running.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Lost { loss: Loss::TakenOver, .. }), "{error}");
        dropped.await.unwrap();
    }

    async fn the_longest_hold_ends_a_body(db: &Db) {
        let rowlock = db.rowlock().await;
        let (work, _, dropped) = Work::new();
        let error = work_too_long(rowlock.clone(), work).await.unwrap_err();
        assert!(matches!(error, Error::Lost { loss: Loss::MaxHold, .. }), "{error}");
        dropped.await.unwrap();
        eventually("the name is free", async || rowlock.inspect("a").await.unwrap().is_none()).await;
    }

    async fn a_dropped_call_drops_its_body_and_frees_the_lock(db: &Db) {
        let rowlock = db.rowlock().await;
        let (work, begun, dropped) = Work::new();
        let running = tokio::spawn(work_for_ever(rowlock.clone(), work));
        begun.notified().await;
        assert!(rowlock.inspect("a").await.unwrap().is_some());
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        dropped.await.unwrap();
        rowlock.flush().await;
        assert_eq!(rowlock.inspect("a").await.unwrap(), None);
    }

    async fn a_release_that_fails_does_not_hide_what_the_body_returned(db: &Db) {
        #[locked(name = "a")]
        async fn lock_the_row(
            rowlock: &Rowlock,
            db: &Db,
            keep: &mut Option<rowlock_test::Tx>,
        ) -> Result<u32, Error> {
            *keep = Some(db.lock_row(held.name().as_str()).await);
            Ok(7)
        }
        let builder = Rowlock::builder().operation_timeout(Duration::from_secs(3));
        let rowlock = builder.connect(&db.url).await.unwrap();
        let mut tx = None;
        assert_eq!(lock_the_row(&rowlock, db, &mut tx).await.unwrap(), 7);
        // The release has failed: nobody else could have written the row.
        tx.unwrap().release().await;
        eventually("the name is free", async || rowlock.inspect("a").await.unwrap().is_none()).await;
    }

    async fn the_guard_of_a_function_can_be_pinned(db: &Db) {
        db.execute("CREATE TABLE app (n BIGINT)").await;
        let rowlock = db.rowlock().await;
        write_under_a_pin(&rowlock, db).await.unwrap();
        assert_eq!(db.number("SELECT COUNT(*) FROM app").await, 1);
    }

    async fn durations_at_their_bounds_are_accepted(db: &Db) {
        #[locked(name = "a", ttl = "100ms", wait = "0ms", max_hold = "100ms")]
        async fn least(rowlock: &Rowlock) -> Result<(), Error> {
            Ok(())
        }
        #[locked(name = "b", ttl = "24h", wait = "8784h", max_hold = "8784h")]
        async fn most(rowlock: &Rowlock) -> Result<Duration, Error> {
            Ok(held.remaining())
        }
        let rowlock = db.rowlock().await;
        // Without a wait, a name that has no row yet may be busy.
        release(&take(&rowlock, "a", Duration::from_mins(1)).await).await;
        // A short lease may be over before its body has run.
        let short = least(&rowlock).await;
        assert!(matches!(short, Ok(()) | Err(Error::Lost { .. })), "{short:?}");
        let trusted = most(&rowlock).await.unwrap();
        assert!(trusted > Duration::from_hours(19) && trusted < Duration::from_hours(24));
    }
}
