//! What the other verbs do with the row of a name that has waiters.

use super::*;
use crate::store::verbs::queue::WaiterRow;

impl<P: Place> Client<P> {
    /// The last grants were eleven days ago.
    pub(crate) async fn age_fences(&mut self) {
        let old = format!("UPDATE rowlock_lock SET fence = {}", P::OLD_FENCE);
        self.run(&old).await;
    }

    /// All grants were eleven days ago, and ran out soon.
    pub(crate) async fn age(&mut self) {
        self.age_fences().await;
        let ago = P::LONG_AGO;
        let old = format!(
            "UPDATE rowlock_lock SET acquired_at = {ago}, expires_at = {ago} WHERE grant_id IS NOT NULL"
        );
        self.run(&old).await;
    }

    /// How many rows of locks there are.
    pub(crate) async fn rows(&mut self) -> i64 {
        P::numbers(&mut self.conn, "SELECT count(*) FROM rowlock_lock").await[0]
    }
}

fn passed_to(waits: &Waits) -> FreeOutcome {
    FreeOutcome::Passed(vec![waits.params.grant_id])
}

pub(crate) async fn a_release_passes_on<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let waits = client.wait("a").await;
    let freed = client.release(held.params.grant_id, "a", held.fence).await;
    assert_eq!(freed, passed_to(&waits));
    assert_eq!(client.look(&waits).await, LookOutcome::Granted);
    let ConfirmOutcome::Held { fence, .. } = client.confirm(&waits).await else {
        panic!("it was passed on");
    };
    let late = client.release(held.params.grant_id, "a", held.fence).await;
    assert_eq!(late, FreeOutcome::Superseded);
    let freed = client.release(waits.params.grant_id, "a", fence).await;
    assert_eq!(freed, FreeOutcome::Released);
    assert_eq!(client.row("a").await.grant_id, None);
    // A grant that has expired is not passed on by its release.
    let held = client.hold("a").await;
    client.wait("a").await;
    client.expire_grants().await;
    let freed = client.release(held.params.grant_id, "a", held.fence).await;
    assert_eq!(freed, FreeOutcome::Expired);
    client.check().await;
}

pub(crate) async fn a_batch_of_releases_passes_on<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut all = Vec::new();
    for name in ["a", "b", "c"] {
        let held = client.hold(name).await;
        all.push(ReleaseParams {
            name: named(name),
            grant_id: held.params.grant_id,
            fence: held.fence,
            was_queued: false,
        });
    }
    let waits = client.wait("b").await;
    let freed = client.conn.lease_release(&all).await.unwrap();
    assert_eq!(
        freed,
        [
            FreeOutcome::Released,
            passed_to(&waits),
            FreeOutcome::Released
        ]
    );
    assert_eq!(client.look(&waits).await, LookOutcome::Granted);
    for name in ["a", "c"] {
        assert_eq!(client.row(name).await.grant_id, None);
    }
    let freed = client.conn.lease_release(&all).await.unwrap();
    assert_eq!(
        freed,
        [
            FreeOutcome::WasFree,
            FreeOutcome::Superseded,
            FreeOutcome::WasFree
        ]
    );
    client.check().await;
}

/// A free name with a waiter, and one without.
async fn free_with_a_waiter<P: Place>(client: &mut Client<P>) -> Waits {
    client.hold("a").await;
    let held = client.hold("b").await;
    let waits = client.wait("a").await;
    client.release(held.params.grant_id, "b", held.fence).await;
    client.expire_grants().await;
    waits
}

fn takes() -> Vec<TakeParams> {
    let take = |name| TakeParams {
        name: named(name),
        grant_id: Uuid::new_v4(),
        ttl: TTL,
        holder: "taker".into(),
        session: None,
    };
    vec![take("a"), take("b")]
}

pub(crate) async fn a_take_overtakes_no_waiter<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let waits = free_with_a_waiter(&mut client).await;
    let taken = client.conn.lease_take_once(&takes()).await.unwrap();
    assert!(
        matches!(&taken[0], TakeOutcome::Busy(Some(row)) if row.is_orphaned()),
        "{taken:?}"
    );
    assert!(matches!(taken[1], TakeOutcome::Granted { .. }), "{taken:?}");
    let taken = client.take("a").await;
    assert!(
        matches!(&taken, TakeOutcome::Busy(Some(row)) if row.is_of(waits.params.grant_id) && row.is_live()),
        "passed on to the waiter: {taken:?}"
    );
    assert_eq!(client.look(&waits).await, LookOutcome::Granted);
}

pub(crate) async fn a_take_gets_a_name_whose_waiters_have_died<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let waits = free_with_a_waiter(&mut client).await;
    client.expire().await;
    let taken = client.take("a").await;
    assert!(matches!(taken, TakeOutcome::Granted { .. }), "{taken:?}");
    assert_eq!(client.look(&waits).await, LookOutcome::Gone);
    client.check().await;
}

pub(crate) async fn no_row_with_waiters_is_cleaned<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    for name in ["a", "b", "c", "d"] {
        client.hold(name).await;
    }
    let waiters = [("a", client.wait("a").await), ("b", client.wait("b").await)];
    // `b` and `d` are free, the others have an expired grant.
    for name in ["b", "d"] {
        let seen = client.row(name).await.grant_id;
        let name = named(name);
        let freed = client.conn.lease_force_release(&name, seen, TTL).await;
        assert!(freed.unwrap().is_some());
    }
    client.age().await;
    let cleaned = client.conn.lock_clean(b"", 10).await.unwrap();
    assert_eq!(cleaned.removed, 2);
    for (name, waits) in &waiters {
        // It has its turn.
        assert_eq!(client.row(name).await.grant_id, Some(waits.params.grant_id));
    }
    client.check().await;
}

pub(crate) async fn a_name_whose_waiters_are_dead_is_cleaned<P: Place>(place: &P) {
    let (mut dies, mut client) = (Client::new(place).await, Client::new(place).await);
    for name in ["a", "b", "c"] {
        client.hold(name).await;
        dies.wait(name).await;
        dies.wait(name).await;
    }
    let waits = client.wait("c").await;
    // `b` is free, the others have an expired grant.
    let seen = client.row("b").await.grant_id;
    let freed = client
        .conn
        .lease_force_release(&named("b"), seen, TTL)
        .await;
    assert!(freed.unwrap().is_some());
    dies.expire().await;
    client.age().await;
    let cleaned = client.conn.lock_clean(b"", 10).await.unwrap();
    assert_eq!((cleaned.removed, client.rows().await), (2, 1));
    assert_eq!(client.row("c").await.grant_id, Some(waits.params.grant_id));
    client.check().await;
}

pub(crate) async fn live_waiters_are_listed<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut dead = Client::new(place).await;
    for name in ["b", "a"] {
        client.hold(name).await;
        client.wait(name).await;
        dead.wait(name).await;
        client.wait(name).await;
    }
    dead.expire().await;
    let rows = client.conn.list_waiters(&named("a"), 0).await.unwrap();
    let found = |rows: &[WaiterRow]| -> Vec<(Vec<u8>, i64)> {
        let place = |row: &WaiterRow| (row.name.clone(), row.position);
        rows.iter().map(place).collect()
    };
    let all = [(b"a".to_vec(), 1), (b"a".to_vec(), 3)];
    assert_eq!(found(&rows), all);
    let rest = client.conn.list_waiters(&named("a"), 1).await.unwrap();
    assert_eq!(found(&rest), all[1..], "in their order, after a position");
    for row in &rows {
        assert_eq!((row.session, &*row.holder), (client.session, "client"));
        assert!((0..10_000_000).contains(&row.waited), "{row:?}");
        assert!(row.joined_at > 1_500_000_000_000_000, "{row:?}");
    }
}
