//! Promise 2: every grant carries a fence greater than that of every earlier grant of that name.

use std::time::Duration;

use rowlock_test::{Db, on_every_engine, take};

const TTL: Duration = Duration::from_secs(30);

on_every_engine! {
    async fn fences_rise_over_release_and_clients(db: &Db) {
        let clients = [db.rowlock().await, db.rowlock().await];
        let mut last = 0;
        for round in 0..20 {
            let held = take(&clients[round % 2], "a", TTL).await;
            assert!(held.fence() > last, "{} after {last}", held.fence());
            last = held.fence();
            held.release().await.unwrap();
        }
    }

    async fn fences_rise_when_the_row_is_removed(db: &Db) {
        let rowlock = db.rowlock().await;
        let first = take(&rowlock, "a", TTL).await;
        first.release().await.unwrap();
        assert_eq!(db.execute("DELETE FROM rowlock_lock").await, 1);
        assert!(take(&rowlock, "a", TTL).await.fence() > first.fence());
    }

    async fn fences_rise_when_the_clock_goes_back(db: &Db) {
        let rowlock = db.rowlock().await;
        drop(take(&rowlock, "a", TTL).await);
        rowlock.flush().await;
        // As it looks when the clock of the server was ahead by some centuries until now.
        let ahead = 4_000_000_000_000_000_000_i64;
        db.execute(&format!("UPDATE rowlock_lock SET fence = {ahead}")).await;
        assert_eq!(take(&rowlock, "a", TTL).await.fence(), ahead + 1);
        rowlock.flush().await;
        assert_eq!(take(&rowlock, "a", TTL).await.fence(), ahead + 2);
    }
}
