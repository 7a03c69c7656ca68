//! Promise 9: the database's clock alone decides expiry, and it is read when the row is ours.

use std::time::{Duration, Instant};

use rowlock_test::{Db, on_every_engine, take};

/// The expiry, ten minutes earlier.
fn minutes_ago(db: &Db) -> String {
    db.moved("expires_at", -600)
}

on_every_engine! {
    async fn a_grant_after_a_wait_for_the_row_has_its_whole_ttl(db: &Db) {
        let rowlock = db.rowlock().await;
        drop(take(&rowlock, "a", Duration::from_secs(1)).await);
        rowlock.flush().await;
        let ttl = Duration::from_secs(6);
        let row = db.lock_row("a").await;
        let lock = rowlock.lock("a").ttl(ttl);
        let acquire = async {
            let held = lock.acquire().await.unwrap();
            let here = (held.remaining(), Instant::now());
            let there = rowlock.inspect("a").await.unwrap().unwrap().remaining;
            (here, (there, Instant::now()))
        };
        let unlock = async {
            // Time itself is tested: the acquire waits for longer than a whole TTL.
            tokio::time::sleep(Duration::from_millis(6_500)).await;
            let released = Instant::now();
            row.release().await;
            released
        };
        let ((here, there), released) = tokio::join!(acquire, unlock);
        // The lease was granted after the row was free, for a whole TTL. Five sixths are trusted, less 10 ms; clocks
        // of servers tell milliseconds.
        let rounding = Duration::from_millis(12);
        // The holder counts from before its request, which waits for the row for some milliseconds, or until a busy
        // machine goes on.
        let waits = ttl / 3;
        let (here, there) = (here.0 + (here.1 - released), there.0 + (there.1 - released));
        assert!(here + rounding + waits >= ttl * 5 / 6, "{here:?} of {ttl:?} here");
        assert!(there + rounding >= ttl, "{there:?} of {ttl:?} in the row");
    }

    async fn a_lease_that_ran_out_is_not_revived(db: &Db) {
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", Duration::from_secs(6)).await;
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = {}", minutes_ago(db))).await;
        // Nobody has taken it; and still, somebody could have.
        assert_eq!(held.lost().await, rowlock::Loss::TakenOver);
        assert_eq!(rowlock.inspect("a").await.unwrap(), None);
    }

    async fn an_expired_lease_is_free_by_the_clock_of_the_database(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", Duration::from_mins(5)).await;
        assert!(two.lock("a").try_acquire().await.unwrap().is_none());
        // The database's clock has moved past the expiry; no clock here has.
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = {}", minutes_ago(db))).await;
        let next = take(&two, "a", Duration::from_mins(5)).await;
        assert!(next.fence() > held.fence());
    }
}
