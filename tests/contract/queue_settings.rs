//! Promise 6 with the settings of a lock: a waiter holds what it asked for, from its turn on.

use std::time::Duration;

use rowlock::{Error, Loss, Rowlock};
use rowlock_test::{
    Db, Waiting, eventually, join, join_with, loss, on_every_engine, queue_is, queue_of, release,
    renewed, take, turns, waiters,
};

const TTL: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
/// How long a grant lasts that is passed on and not confirmed.
const WINDOW: Duration = Duration::from_secs(2);

/// Waits until the first waiter has waited for so long, by the database's clock.
async fn waited(rowlock: &Rowlock, name: &str, time: Duration) {
    eventually("it has waited", async || {
        waiters(rowlock, name).await[0].waited > time
    })
    .await;
}

on_every_engine! {
    async fn the_ttl_of_a_waiter_begins_with_its_turn(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        // Longer than the window, and shorter.
        let long = join_with(&two, "a", "long", |lock| lock.ttl(20 * TTL)).await;
        let short = join_with(&two, "a", "short", |lock| lock.ttl(SECOND)).await;
        let renews = join_with(&two, "a", "renews", |lock| lock.ttl(10 * SECOND)).await;
        let last = join(&one, "a", "last").await;
        waited(&one, "a", SECOND).await;
        release(&held).await;
        let long = long.await.unwrap().unwrap();
        assert!(long.remaining() > 10 * TTL, "{:?}", long.remaining());
        let info = one.inspect("a").await.unwrap().unwrap();
        assert!(info.remaining > 19 * TTL, "{info:?}");
        assert_eq!((info.holder.as_str(), info.session, info.fence), ("long", None, long.fence()));
        release(&long).await;
        let short = short.await.unwrap().unwrap();
        assert!(short.remaining() <= SECOND);
        // A busy machine may lose it before it looks.
        let info = one.inspect("a").await.unwrap().filter(|info| info.fence == short.fence());
        assert!(info.as_ref().is_none_or(|info| info.remaining <= SECOND), "{info:?}");
        let _ = loss(short.release().await);
        // It is renewed like any other lease.
        let renews = renews.await.unwrap().unwrap();
        renewed(&renews).await;
        renewed(&renews).await;
        assert_eq!(one.inspect("a").await.unwrap().unwrap().fence, renews.fence());
        assert_eq!(queue_of(&one, "a").await, ["last"]);
        release(&renews).await;
        assert_eq!(turns([last]).await, [0]);
    }

    async fn the_longest_hold_of_a_waiter_begins_with_its_turn(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let limited = join_with(&two, "a", "limited", |lock| lock.max_hold(SECOND)).await;
        let next = join(&one, "a", "next").await;
        waited(&one, "a", 2 * SECOND).await;
        release(&held).await;
        let limited = limited.await.unwrap().unwrap();
        assert!(limited.remaining() <= SECOND);
        assert_eq!(limited.lost().await, Loss::MaxHold);
        // The guard lives, and the next waiter has its turn all the same.
        let next = next.await.unwrap().unwrap();
        assert!(next.fence() > limited.fence());
        assert!(matches!(limited.release().await, Err(Error::Lost { loss: Loss::MaxHold, .. })));
        assert!(next.is_held());
    }

    async fn waiters_get_a_name_whose_lease_runs_out(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let waiting = [join(&one, "a", "0").await, join(&two, "a", "1").await];
        let soon = db.soon();
        db.execute(&format!("UPDATE rowlock_lock SET expires_at = {soon} WHERE grant_id IS NOT NULL")).await;
        assert_eq!(turns(waiting).await, [0, 1]);
        drop(held);
    }

    async fn a_waiter_for_a_lock_in_the_session_gets_one(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let lock = join_with(&two, "a", "in session", rowlock::Lock::in_session).await;
        let lease = join(&two, "a", "lease").await;
        let [session, _] = &waiters(&one, "a").await[..] else { panic!("two waiters") };
        release(&held).await;
        let lock = lock.await.unwrap().unwrap();
        let info = one.inspect("a").await.unwrap().unwrap();
        assert_eq!((info.fence, info.session), (lock.fence(), Some(session.session)));
        assert!(info.remaining > WINDOW && lock.remaining() > WINDOW, "{info:?}");
        release(&lock).await;
        // A waiter belongs to the session, and its lease does not.
        let lease = lease.await.unwrap().unwrap();
        let info = one.inspect("a").await.unwrap().unwrap();
        assert_eq!((info.fence, info.session), (lease.fence(), None));
        two.end_session().await.unwrap();
        assert!(lease.is_held());
        release(&lease).await;
    }

    async fn ending_a_session_passes_its_locks_on(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let lock = one.lock("a").in_session();
        let held = lock.try_acquire().await.unwrap().expect("free");
        let waiting = [join(&two, "a", "0").await, join(&two, "a", "1").await];
        // A waiter may be the one that frees it: then it is not counted here.
        assert!(one.end_session().await.unwrap() <= 1);
        assert_eq!(held.loss(), Some(Loss::SessionEnded));
        assert_eq!(turns(waiting).await, [0, 1]);
    }

    async fn a_forced_release_passes_the_name_on(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let held = take(&one, "a", TTL).await;
        let waiting = [join(&two, "a", "0").await, join(&one, "a", "1").await];
        let freed = two.admin().force_release("a").await.unwrap().unwrap();
        assert_eq!(freed.fence, held.fence());
        assert_eq!(turns(waiting).await, [0, 1]);
        assert!(matches!(held.release().await, Err(Error::Lost { loss: Loss::TakenOver, .. })));
    }

    async fn an_owner_enters_again_while_others_wait(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let me = one.owner();
        let outer = one.lock("a").owner(&me).acquire().await.unwrap();
        let waiting = [join(&two, "a", "0").await, join(&one, "a", "1").await];
        let inner = one.lock("a").owner(&me).acquire().await.unwrap();
        let again = one.lock("a").owner(&me).try_acquire().await.unwrap().expect("mine");
        assert_eq!((inner.fence(), again.fence()), (outer.fence(), outer.fence()));
        queue_is(&two, "a", &["0", "1"]).await;
        for held in [outer, again] {
            release(&held).await;
        }
        assert!(inner.is_held());
        queue_is(&two, "a", &["0", "1"]).await;
        release(&inner).await;
        assert_eq!(turns(waiting).await, [0, 1]);
    }

    /// Each task that waits is in the queue, or waits for another task of its owner. No row of theirs is left.
    async fn tasks_of_one_owner_wait_together_and_share_the_grant(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let me = one.owner();
        let held = take(&two, "a", TTL).await;
        let mine = |holder: &'static str| {
            let lock = one.lock("a").owner(&me).holder(holder);
            tokio::spawn(async move { lock.acquire().await })
        };
        let first: Waiting = join_with(&one, "a", "mine", |lock| lock.owner(&me)).await;
        let stranger = join(&two, "a", "stranger").await;
        let others = [mine("mine, too"), mine("mine, too")];
        release(&held).await;
        let first = first.await.unwrap().unwrap();
        for other in others {
            let other = other.await.unwrap().unwrap();
            assert_eq!(other.fence(), first.fence());
            release(&other).await;
        }
        queue_is(&two, "a", &["stranger"]).await;
        assert!(first.is_held());
        release(&first).await;
        let stranger = stranger.await.unwrap().unwrap();
        queue_is(&two, "a", &[]).await;
        release(&stranger).await;
        // No waiter of the owner is left that gets the name.
        let after = take(&two, "a", TTL).await;
        assert!(after.fence() > stranger.fence());
    }

    async fn a_waiting_task_of_an_owner_may_leave_alone(db: &Db) {
        let (one, two) = (db.rowlock().await, db.rowlock().await);
        let me = one.owner();
        let held = take(&two, "a", TTL).await;
        let first = join_with(&one, "a", "mine", |lock| lock.owner(&me)).await;
        let lock = one.lock("a").owner(&me);
        let second = tokio::spawn(async move { lock.acquire().await });
        let stranger = join(&two, "a", "stranger").await;
        first.abort();
        eventually("it has left", async || !queue_of(&two, "a").await.contains(&"mine".into())).await;
        release(&held).await;
        // The second task and the stranger have their turns.
        let mut numbers = turns([second, stranger]).await;
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1]);
    }
}
