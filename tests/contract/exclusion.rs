//! Promise 1: at any instant at most one live grant exists for a name.

use std::time::Duration;

use rowlock::{ReleaseOutcome, TryAcquire};

use crate::common::{Db, on_every_engine, take};

const TTL: Duration = Duration::from_secs(30);

on_every_engine! {
    async fn a_held_name_is_busy_and_tells_its_holder(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = one.lock("a").ttl(TTL).holder("worker one").acquire().await.unwrap();
        let TryAcquire::Busy(busy) = two.lock("a").try_acquire().await.unwrap() else {
            panic!("the name was granted twice");
        };
        let holder = busy.holder.expect("the row is not locked");
        assert_eq!(holder.holder, "worker one");
        assert_eq!(holder.fence, held.fence());
        assert_eq!(holder.holds, 1);
        assert_eq!((holder.expires_at - holder.acquired_at).num_seconds(), 30);
        assert!(holder.remaining > Duration::from_secs(25) && holder.remaining <= TTL);
    }

    async fn a_released_name_is_free_at_once(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let first = take(&one, "a", TTL).await;
        assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
        let second = take(&two, "a", TTL).await;
        assert!(second.fence() > first.fence());
    }
}
