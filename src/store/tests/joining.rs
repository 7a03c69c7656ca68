//! Joining a queue.

use std::time::{Duration, Instant};

use super::*;
use crate::store::verbs::queue::WINDOW;
use crate::store::verbs::time::to_micros;

pub(crate) async fn a_free_name_is_granted<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let began = Instant::now();
    let first = client.hold("a").await;
    let row = client.row("a").await;
    let took = to_micros(began.elapsed());
    assert!(row.is_of(first.params.grant_id) && row.is_live());
    assert_eq!(
        (row.fence, row.session, row.waiters),
        (first.fence, None, 0)
    );
    let left = row.remaining.unwrap();
    // SQLite tells up to a millisecond less.
    let all = 30_000_000;
    assert!(left <= all && left + took + 1_000 >= all, "{left} {took}");

    client
        .release(first.params.grant_id, "a", first.fence)
        .await;
    let params = JoinParams {
        in_session: true,
        most: 0,
        ..client.ask("a")
    };
    let joined = client.join(&params).await;
    let JoinOutcome::Granted { fence } = joined else {
        panic!("{joined:?}");
    };
    assert!(fence > first.fence);
    assert_eq!(client.row("a").await.session, Some(client.session));

    client.expire_grants().await;
    let third = client.hold("a").await;
    assert!(third.fence > fence);
    assert_eq!(client.row("a").await.session, None);
}

pub(crate) async fn a_held_name_is_waited_for<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    for n in 1..=3 {
        let params = client.ask("a");
        let joined = client.join(&params).await;
        let JoinOutcome::Queued {
            position,
            is_orphaned,
        } = joined
        else {
            panic!("{joined:?}");
        };
        assert_eq!((position, is_orphaned), (n, false));
        let waits = Waits { params, position };
        let looked = client.look(&waits).await;
        let LookOutcome::Waiting {
            is_orphaned: false,
            remaining,
        } = looked
        else {
            panic!("{looked:?}");
        };
        assert!(remaining > Duration::from_secs(20), "{remaining:?}");
    }
    let row = client.row("a").await;
    assert!(row.is_of(held.params.grant_id) && !row.is_orphaned());
    assert_eq!(row.waiters, 3);
    // Nobody holds the name now, and it has waiters: it is not free.
    client.expire_grants().await;
    assert!(client.row("a").await.is_orphaned());
    let params = client.ask("a");
    let joined = client.join(&params).await;
    assert!(
        matches!(
            joined,
            JoinOutcome::Queued {
                position: 4,
                is_orphaned: true
            }
        ),
        "{joined:?}"
    );
    client.check().await;
}

pub(crate) async fn a_join_that_was_sent_twice_finds_its_grant<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let first = client.hold("a").await;
    client.wait("a").await;
    let joined = client.join(&first.params).await;
    assert!(
        matches!(joined, JoinOutcome::Granted { fence } if fence == first.fence),
        "{joined:?}"
    );
    assert_eq!(client.row("a").await.waiters, 1);
    client.check().await;
}

pub(crate) async fn a_join_that_was_sent_twice_finds_its_waiter<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    client.hold("a").await;
    client.wait("a").await;
    let second = client.wait("a").await;
    client.wait("a").await;
    // The limit is not for a waiter that has its place.
    let again = JoinParams {
        most: 0,
        ..second.params.clone()
    };
    let joined = client.join(&again).await;
    assert!(
        matches!(joined, JoinOutcome::Queued { position, is_orphaned: false } if position == second.position),
        "{joined:?}"
    );
    assert_eq!(client.row("a").await.waiters, 3);
    client.check().await;
}

/// The grant was passed on between the two sendings.
pub(crate) async fn a_grant_that_is_found_needs_no_confirm<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let params = JoinParams {
        in_session: true,
        ..client.ask("a")
    };
    client.join(&params).await;
    client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    assert!(client.row("a").await.remaining.unwrap() <= to_micros(WINDOW));
    let joined = client.join(&params).await;
    assert!(
        matches!(joined, JoinOutcome::Granted { fence } if fence > held.fence),
        "{joined:?}"
    );
    let row = client.row("a").await;
    assert!(row.remaining.unwrap() > 20_000_000, "{row:?}");
    assert_eq!(row.session, Some(client.session));
}

pub(crate) async fn a_queue_has_its_limit<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let params = |client: &Client<P>| JoinParams {
        most: 1,
        ..client.ask("a")
    };
    let first = params(&client);
    assert!(matches!(
        client.join(&first).await,
        JoinOutcome::Queued { .. }
    ));
    let second = params(&client);
    let joined = client.join(&second).await;
    let JoinOutcome::Full(row) = joined else {
        panic!("{joined:?}");
    };
    assert!(row.is_of(held.params.grant_id));
    assert_eq!(row.waiters, 1);
    client.check().await;
}
