//! Transactions that wait for their turns, in a file of SQLite.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;
use crate::client::Rowlock;
use crate::model::Moment;
use crate::runtime::base::tasks::Tasks;
use crate::runtime::base::timer::sleep_until;
use crate::transaction::{Retry, RetryTx, Retryable};

const ONCE: Retry = Retry::new().attempts(1);

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(20);

async fn pool(dir: &TempDir, connections: u32) -> SqlitePool {
    pool_of(dir.path().join("a.db"), connections).await
}

async fn pool_of(file: PathBuf, connections: u32) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(file);
    let options = options.create_if_missing(true).busy_timeout(SOON);
    let pool = SqlitePoolOptions::new().max_connections(connections);
    pool.acquire_timeout(SOON)
        .connect_with(options)
        .await
        .unwrap()
}

fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    Tasks::default().spawn("a transaction", work)
}

async fn run(pool: &SqlitePool) -> Result<(), Error> {
    ONCE.run(pool, |tx| async move {
        drop(tx);
        Ok(())
    })
    .await
}

/// Begins a transaction in a task of its own, which ends it when it is told to.
async fn busy(pool: &SqlitePool) -> (JoinHandle<()>, Arc<Notify>) {
    let (begun, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (pool, told, until) = (pool.clone(), Arc::clone(&begun), Arc::clone(&end));
    let task = spawn(async move {
        let (told, until) = (&told, &until);
        let work = |tx| async move {
            told.notify_one();
            until.notified().await;
            drop(tx);
            Ok::<(), Error>(())
        };
        ONCE.run(&pool, work).await.unwrap();
    });
    begun.notified().await;
    (task, end)
}

#[tokio::test]
async fn a_transaction_in_the_closure_of_another_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (pool(&dir, 4).await, pool(&dir, 4).await);
    nested_is_refused(&here, &there).await;
}

/// The file has another name there.
#[cfg(unix)]
#[tokio::test]
async fn a_transaction_in_the_closure_of_another_through_a_link_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let here = pool(&dir, 4).await;
    run(&here).await.unwrap();
    let link = dir.path().join("link.db");
    std::os::unix::fs::symlink(dir.path().join("a.db"), &link).unwrap();
    nested_is_refused(&here, &pool_of(link, 4).await).await;
}

#[tokio::test]
async fn a_transaction_in_a_closure_within_its_own_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (
        pool(&dir, 4).await,
        pool_of(dir.path().join("b.db"), 4).await,
    );
    let (here, there) = (&here, &there);
    let (outer, inner) = (ONCE, ONCE);
    let nested = outer.run(here, |tx| {
        let inner = &inner;
        async move {
            let between = inner.run(there, |of_there| async move {
                let again = run(here).await;
                drop(of_there);
                again
            });
            let refused = between.await;
            drop(tx);
            refused
        }
    });
    let error = tokio::time::timeout(SOON / 2, nested).await;
    let error = error.expect("it waits for itself").unwrap_err();
    assert!(
        error.to_string().contains("begins another transaction"),
        "{error}"
    );
}

async fn nested_is_refused(here: &SqlitePool, there: &SqlitePool) {
    let once = ONCE;
    let nested = once.run(here, |tx| async move {
        let error = run(there).await.unwrap_err();
        drop(tx);
        Err::<(), _>(error)
    });
    let error = tokio::time::timeout(SOON / 2, nested).await;
    let error = error.expect("it waits for itself").unwrap_err();
    assert!(
        error.to_string().contains("begins another transaction"),
        "{error}"
    );
    assert!(!Retryable::is_retryable(&error));
    run(here).await.unwrap();
}

#[tokio::test]
async fn waiting_transactions_keep_one_connection() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir, 3).await;
    let (first, end) = busy(&pool).await;
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let pool = pool.clone();
            spawn(async move { run(&pool).await })
        })
        .collect();
    while pool.size() < 2 {
        tokio::task::yield_now().await;
    }
    // The transaction has one, and the head of the line another.
    let other = tokio::time::timeout(SOON / 2, pool.acquire()).await;
    drop(other.expect("the line has all connections").unwrap());
    end.notify_one();
    first.await.unwrap();
    for waits in waiting {
        waits.await.unwrap().unwrap();
    }
}

/// The transaction that waits for a connection of its own pool does not keep back the others, which have theirs.
#[tokio::test]
async fn a_pool_without_a_free_connection_holds_up_no_other_pool() {
    let dir = tempfile::tempdir().unwrap();
    let (full, other) = (pool(&dir, 1).await, pool(&dir, 1).await);
    let reader = full.acquire().await.unwrap();
    let waits = {
        let full = full.clone();
        spawn(async move { run(&full).await })
    };
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let run_beside = tokio::time::timeout(SOON / 2, run(&other)).await;
    run_beside.expect("the line stands still").unwrap();
    assert!(!waits.is_finished());
    drop(reader);
    waits.await.unwrap().unwrap();
}

/// A pool with this `acquire_timeout`, which has its connection: making one may take longer.
async fn impatient(dir: &TempDir, time: Duration) -> SqlitePool {
    let file = SqliteConnectOptions::new().filename(dir.path().join("a.db"));
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .acquire_timeout(time)
        .connect_lazy_with(file);
    let connected = async {
        while pool.acquire().await.is_err() {}
        while pool.num_idle() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let connected = tokio::time::timeout(SOON, connected).await;
    connected.expect("it has its connection");
    pool
}

/// Such a transaction tries again. (Nothing had begun.)
#[tokio::test]
async fn a_transaction_whose_turn_does_not_come_in_time_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let (first, end) = busy(&pool(&dir, 1).await).await;
    let short = impatient(&dir, Duration::from_millis(20)).await;
    let tries = Retry::new().attempts(1_000);
    let mut next = Box::pin(tries.run(&short, |tx| async move {
        drop(tx);
        Ok::<_, Error>(())
    }));
    let early = tokio::time::timeout(Duration::from_millis(100), &mut next).await;
    assert!(early.is_err(), "the other one has the file: {early:?}");
    end.notify_one();
    tokio::time::timeout(SOON / 2, next).await.unwrap().unwrap();
    first.await.unwrap();
}

#[tokio::test]
async fn the_wait_ends_with_the_patience_of_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let (first, end) = busy(&pool(&dir, 1).await).await;
    let short = impatient(&dir, Duration::from_millis(50)).await;
    let error = run(&short).await.unwrap_err();
    assert!(
        error.to_string().contains("for 50ms, the acquire_timeout"),
        "{error}"
    );
    assert!(Retryable::is_retryable(&error));
    end.notify_one();
    first.await.unwrap();
    run(&short).await.unwrap();
}

#[tokio::test]
async fn a_transaction_that_panics_or_is_cancelled_gives_up_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir, 2).await;
    let panics = {
        let pool = pool.clone();
        spawn(async move {
            let ends = std::hint::black_box(false);
            let work = |tx: RetryTx<sqlx::Sqlite>| async move {
                assert!(ends, "on purpose");
                drop(tx);
                Ok::<(), Error>(())
            };
            ONCE.run(&pool, work).await
        })
    };
    assert!(panics.await.unwrap_err().is_panic());
    tokio::time::timeout(SOON / 2, run(&pool))
        .await
        .unwrap()
        .unwrap();
    let (cancelled, _end) = busy(&pool).await;
    let next = {
        let pool = pool.clone();
        spawn(async move { run(&pool).await })
    };
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    let next = tokio::time::timeout(SOON / 2, next).await;
    next.unwrap().unwrap().unwrap();
}

/// At each of its steps: in the line, at the begin, in the work, at the commit.
#[tokio::test]
async fn a_transaction_that_is_cut_off_anywhere_gives_up_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir, 2).await;
    for steps in 0..40 {
        let (first, end) = busy(&pool).await;
        let mut cut = Box::pin(run(&pool));
        for step in 0..steps {
            let mut done = false;
            std::future::poll_fn(|cx| {
                done = cut.as_mut().poll(cx).is_ready();
                std::task::Poll::Ready(())
            })
            .await;
            if done {
                cut = Box::pin(run(&pool));
            }
            if step == 3 {
                end.notify_one();
            }
            tokio::task::yield_now().await;
        }
        drop(cut);
        end.notify_one();
        first.await.unwrap();
        let next = tokio::time::timeout(SOON / 2, run(&pool)).await;
        next.expect("the turn was given up").unwrap();
    }
}

#[tokio::test]
async fn a_lane_waits_for_few_of_many_transactions() {
    // Shorter and longer than a lane would wait if no transaction had the file.
    for (line, time) in [(100, 3), (20, 60)] {
        a_lane_waits_for_few(line, Duration::from_millis(time)).await;
    }
}

async fn a_lane_waits_for_few(line: u32, time: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir, 4).await;
    let rowlock = Rowlock::from_pool(&pool).await.unwrap();
    drop(rowlock.lock("a").acquire().await.unwrap());
    rowlock.flush().await;
    let done = Arc::new(AtomicU32::new(0));
    let (first, end) = busy(&pool).await;
    let waiting: Vec<_> = (0..line)
        .map(|_| {
            let (pool, done) = (pool.clone(), Arc::clone(&done));
            spawn(async move {
                let done = &done;
                let work = |tx| async move {
                    sleep_until(Moment::now() + time).await;
                    done.fetch_add(1, Ordering::Relaxed);
                    drop(tx);
                    Ok::<(), Error>(())
                };
                ONCE.run(&pool, work).await.unwrap();
            })
        })
        .collect();
    tokio::task::yield_now().await;
    end.notify_one();
    first.await.unwrap();
    for _ in 0..4 {
        let held = rowlock.lock("a").acquire().await.unwrap();
        assert!(held.release().await.is_ok());
    }
    let done = done.load(Ordering::Relaxed);
    assert!(done < line / 2, "{done} of {line} transactions went first");
    for waits in waiting {
        waits.await.unwrap();
    }
}
