//! Permits: names of another kind, repeated asks, and permits that have just ended.

use super::*;
use crate::store::verbs::clean::CleanStore;
use crate::store::verbs::in_tx::{TxParams, TxTaken};

/// An undo passes on too. So it finds names of another kind.
pub(crate) async fn the_verbs_for_locks_leave_permits_alone(place: &impl Place) {
    let mut client = Client::new(place).await;
    let _ = client.permit(TWO, 2).await;
    let waits = client.waits(TWO, 1).await;
    let params = client.ask("a");
    let joined = client.join(&params).await;
    assert!(
        matches!(joined, JoinOutcome::Mismatch(Some(TWO))),
        "{joined:?}"
    );
    let undo = PassWhy::Left {
        grant_id: params.grant_id,
        at: None,
    };
    for why in [PassWhy::Orphaned, undo] {
        assert_eq!(client.pass("a", why).await, PassOutcome::NOTHING);
    }
    assert!(waits_on(&client.looks(&waits).await));
    assert_eq!(client.row("a").await.grant_id, None);
    client.check().await;
}

pub(crate) async fn the_verbs_for_permits_leave_locks_alone(place: &impl Place) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let waits = client.wait("a").await;
    let undo = PassWhy::Left {
        grant_id: Uuid::new_v4(),
        at: None,
    };
    for why in [PassWhy::Orphaned, undo] {
        assert_eq!(client.passes(why).await, PassOutcome::NOTHING);
    }
    assert!(waits_on(&client.look(&waits).await));
    let row = client.row("a").await;
    assert!(row.is_of(held.params.grant_id) && row.waiters == 1);
    client.check().await;
}

/// The answer to a join was lost, and it was sent again only after the permit had ended.
pub(crate) async fn a_permit_that_has_ended_is_asked_for_again(place: &impl Place) {
    let mut client = Client::new(place).await;
    let permit = client.permit(TWO, 1).await;
    client.expire_permit(&permit).await;
    let again = client.joins_permits(&permit.params).await;
    assert!(
        matches!(again, JoinOutcome::Granted { fence } if fence > permit.number),
        "{again:?}"
    );
    assert_eq!(client.used().await, [1, 1]);

    // It waited, and its window is over.
    let full = client.permit(TWO, 1).await;
    let waits = client.waits(TWO, 1).await;
    assert!(matches!(
        client.releases(&full).await,
        FreeOutcome::Passed(_)
    ));
    client.expire_grants().await;
    let again = client.joins_permits(&waits.params).await;
    assert!(matches!(again, JoinOutcome::Granted { .. }), "{again:?}");
    client.check().await;
}

pub(crate) async fn a_permit_that_ends_with_its_session_gets_no_weight(place: &impl Place) {
    let three = Kind::Semaphore { capacity: 3 };
    let (mut dies, mut client) = (Client::new(place).await, Client::new(place).await);
    let permit = dies.permit_in_session(three, 1).await;
    let _ = client.permit(three, 1).await;
    dies.expire().await;
    assert_eq!(dies.weighs(&permit, 3).await, WeighOutcome::Gone);
    let _ = client.permit(three, 2).await;
    assert_eq!(client.used().await, [3, 3]);
}

pub(crate) async fn no_name_with_permits_is_cleaned<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let permit = client.permit(TWO, 1).await;
    client.age_fences().await;
    assert_eq!(client.conn.lock_clean(b"", 10).await.unwrap().removed, 0);
    assert_eq!(client.releases(&permit).await, FreeOutcome::Released);
    assert_eq!(client.conn.lock_clean(b"", 10).await.unwrap().removed, 1);
}

/// Nobody has asked for a permit since, so nobody has reclaimed theirs.
pub(crate) async fn a_name_whose_holders_have_crashed_is_cleaned<P: Place>(place: &P) {
    let (mut dies, mut client) = (Client::new(place).await, Client::new(place).await);
    let _ = client.permit(TWO, 1).await;
    let _ = dies.permit_in_session(TWO, 1).await;
    client.age().await;
    dies.expire().await;
    assert_eq!(client.conn.lock_clean(b"", 1).await.unwrap().removed, 1);
    assert_eq!(client.rows().await, 0);
    let taken = client.take("a").await;
    assert!(matches!(taken, TakeOutcome::Granted { .. }), "{taken:?}");

    // One of two holders has crashed.
    let three = Kind::Semaphore { capacity: 3 };
    client.run("DELETE FROM rowlock_lock").await;
    let _ = client.permit(three, 2).await;
    client.age().await;
    let _ = client.permit(three, 1).await;
    client.age_fences().await;
    assert_eq!(client.conn.lock_clean(b"", 10).await.unwrap().removed, 0);
    assert_eq!((client.used().await, client.rows().await), ([1, 1], 2));
}

pub(crate) async fn a_change_of_the_capacity_is_a_use<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let permit = client.permit(TWO, 1).await;
    assert_eq!(client.releases(&permit).await, FreeOutcome::Released);
    client.age_fences().await;
    let resized = client.conn.permit_resize(&named("a"), 3).await.unwrap();
    let (before, next) = (Some(2), Vec::new());
    assert_eq!(resized, Some(ResizeOutcome::Done { before, next }));
    assert_eq!(client.conn.lock_clean(b"", 10).await.unwrap().removed, 0);
    client.age_fences().await;
    assert_eq!(client.conn.lock_clean(b"", 10).await.unwrap().removed, 1);
}

pub(crate) async fn a_transaction_takes_no_name_of_another_kind(place: &impl Place) {
    let mut client = Client::new(place).await;
    let permit = client.permit(TWO, 1).await;
    client.releases(&permit).await;
    client.run("BEGIN").await;
    let params = TxParams {
        name: named("a"),
        version: None,
        before: None,
        begun: false,
    };
    let taken = client.conn.tx_take(&[params]).await.unwrap().found;
    assert!(!matches!(taken, TxTaken::Granted { .. }), "{taken:?}");
    client.run("ROLLBACK").await;
}

/// A person has changed the row.
pub(crate) async fn a_damaged_capacity_is_no_kind(place: &impl Place) {
    let mut client = Client::new(place).await;
    let _ = client.permit(TWO, 1).await;
    for damaged in [-1, i64::from(Kind::ALL) + 1] {
        let damage = format!("UPDATE rowlock_lock SET capacity = {damaged}");
        client.run(&damage).await;
        let params = client.asks(TWO, 1, false);
        let joined = client.joins_permits(&params).await;
        assert!(matches!(joined, JoinOutcome::Mismatch(None)), "{joined:?}");
        let joined = client.join(&params.join).await;
        assert!(matches!(joined, JoinOutcome::Mismatch(None)), "{joined:?}");
        let taken = client.take("a").await;
        assert!(
            matches!(&taken, TakeOutcome::Busy(Some(row)) if row.kind.is_none()),
            "{taken:?}"
        );
        let resized = client.conn.permit_resize(&named("a"), 5).await.unwrap();
        assert_eq!(resized, Some(ResizeOutcome::Mismatch(None)));
    }
}
