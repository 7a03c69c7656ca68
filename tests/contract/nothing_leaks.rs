//! Promise 5: an acquire whose caller is gone is undone, a guard's drop releases, and no session that
//! holds anything goes back to a pool.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rowlock_test::{Db, eventually, on_app, on_every_engine, take};

/// How many operations are cancelled per engine.
fn cancels() -> u32 {
    std::env::var("ROWLOCK_CANCELS").map_or(2_000, |count| count.parse().expect("a number"))
}

/// Polls `future` at most `polls` times, then drops it. True: it was done before.
async fn cancelled_after<F: Future>(future: F, polls: u32) -> bool {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        if left == 0 {
            // The last poll; whatever it says, nobody waits for a wake-up.
            return Poll::Ready(future.as_mut().poll(cx).is_ready());
        }
        future.as_mut().poll(cx).map(|_| true)
    })
    .await
}

on_every_engine! {
    async fn a_dropped_guard_releases_in_the_background(db: &Db) {
        let rowlock = db.rowlock().await;
        drop(take(&rowlock, "a", Duration::from_mins(1)).await);
        rowlock.flush().await;
        assert_eq!(rowlock.inspect("a").await.unwrap(), None);
    }

    async fn a_guard_may_be_dropped_where_there_is_no_runtime(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", Duration::from_mins(1)).await;
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        std::thread::spawn(move || drop(held)).join().unwrap();
        rowlock.flush().await;
        assert_eq!(rowlock.inspect("a").await.unwrap(), None);
    }

    async fn a_client_that_is_gone_leaves_no_connection(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", Duration::from_secs(2)).await;
        let first = held.deadline().to_instant();
        let renewed = first + Duration::from_millis(50);
        eventually("it was renewed", async || held.deadline().to_instant() > renewed).await;
        // A lane's, and that of the renewals.
        let with = db.clients().await;
        assert!(with >= 2, "{with} connections");
        drop((held, rowlock));
        eventually("no connection is left", async || db.clients().await == 0).await;
    }

    async fn cancelling_at_every_poll_leaves_nothing_behind(db: &Db) {
        let rowlock = db.rowlock().await;
        let app = db.app.clone();
        let (mut cancelled, mut polls) = (0, 0);
        while cancelled < cancels() {
            // The cancelled operation, with one poll more each time, until it is done; then again.
            let name = format!("n{}", cancelled % 7);
            let lock = rowlock.lock(name.as_str()).ttl(Duration::from_mins(10));
            let done = match cancelled % 3 {
                0 => cancelled_after(lock.acquire(), polls).await,
                1 => {
                    let Some(held) = lock.try_acquire().await.unwrap() else {
                        // A release is still on its way.
                        rowlock.flush().await;
                        continue;
                    };
                    cancelled_after(held.release(), polls).await
                }
                _ => {
                    let held = lock.acquire().await.unwrap();
                    cancelled_after(held.with(async || tokio::task::yield_now().await), polls).await
                }
            };
            polls = if done { 0 } else { polls + 1 };
            if polls > 8 {
                polls = 0;
            }
            cancelled += 1;
        }
        rowlock.flush().await;
        assert_eq!(rowlock.admin().list().await.unwrap(), []);
        eventually("no transaction is open", async || db.open_transactions().await == 0).await;
        eventually("the pool is whole", async || {
            on_app!(&app, pool => pool.size() as usize == pool.num_idle())
        })
        .await;
        // And everything still works.
        for number in 0..7 {
            let _held = take(&rowlock, &format!("n{number}"), Duration::from_secs(1)).await;
        }
    }
}
