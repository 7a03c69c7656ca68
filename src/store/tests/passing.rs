//! Passing a name on.

use std::time::Duration;

use super::*;
use crate::store::verbs::queue::WINDOW;
use crate::store::verbs::time::to_micros;

pub(crate) async fn a_name_is_passed_on_in_order<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(client.wait("a").await);
    }
    let (mut last, mut fence) = (held.params.grant_id, held.fence);
    for (n, waits) in waiting.iter().enumerate() {
        let looked = client.look(waits).await;
        assert!(
            matches!(
                looked,
                LookOutcome::Waiting {
                    is_orphaned: false,
                    ..
                }
            ),
            "{looked:?}"
        );
        let passed = client.pass("a", PassWhy::Ended(last)).await;
        assert!(client.is_next(&passed, waits), "{passed:?}");
        assert_eq!(passed.ended, EndedGrant::Live);
        assert_eq!(client.look(waits).await, LookOutcome::Granted);
        let confirmed = client.confirm(waits).await;
        let ConfirmOutcome::Held { fence: next, .. } = confirmed else {
            panic!("{confirmed:?}");
        };
        assert!(next > fence);
        let row = client.row("a").await;
        assert_eq!((row.fence, row.waiters as usize), (next, 2 - n));
        client.check().await;
        (last, fence) = (waits.params.grant_id, next);
    }
    let passed = client.pass("a", PassWhy::Ended(last)).await;
    let free = PassOutcome {
        ended: EndedGrant::Live,
        next: vec![],
    };
    assert_eq!(passed, free);
    let row = client.row("a").await;
    assert_eq!((row.grant_id, row.fence), (None, fence));
    // Sent again, it finds nothing to do.
    assert_eq!(
        client.pass("a", PassWhy::Ended(last)).await,
        PassOutcome::NOTHING
    );
    let places = P::numbers(
        &mut client.conn,
        "SELECT passed - next_position FROM rowlock_lock",
    );
    assert_eq!(places.await, [-1]);
    client.hold("a").await;
}

pub(crate) async fn dead_waiters_are_passed_over<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut dead = Client::new(place).await;
    let held = client.hold("a").await;
    let (first, second) = (dead.wait("a").await, dead.wait("a").await);
    let third = client.wait("a").await;
    let fourth = dead.wait("a").await;
    dead.expire().await;
    let passed = client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    assert!(client.is_next(&passed, &third), "{passed:?}");
    assert_eq!(client.row("a").await.waiters, 1);
    client.check().await;
    for waits in [&first, &second] {
        assert_eq!(dead.look(waits).await, LookOutcome::Gone);
    }
    let looked = dead.look(&fourth).await;
    assert!(matches!(looked, LookOutcome::Waiting { .. }), "{looked:?}");
    // No waiter lives.
    let passed = client
        .pass("a", PassWhy::Ended(third.params.grant_id))
        .await;
    assert!(passed.next.is_empty(), "{passed:?}");
    let row = client.row("a").await;
    assert_eq!((row.grant_id, row.waiters), (None, 0));
    client.check().await;
    client.hold("a").await;
}

pub(crate) async fn a_waiter_whose_place_is_unknown_leaves<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let (first, second) = (client.wait("a").await, client.wait("a").await);
    let leaves = |waits: &Waits| PassWhy::Left {
        grant_id: waits.params.grant_id,
        at: None,
    };
    for _ in 0..2 {
        let passed = client.pass("a", leaves(&second)).await;
        assert_eq!(passed, PassOutcome::NOTHING);
        assert_eq!(client.row("a").await.waiters, 1);
        client.check().await;
    }
    // Its turn has come meanwhile.
    client.release(held.params.grant_id, "a", held.fence).await;
    let passed = client.pass("a", leaves(&first)).await;
    assert!(passed.next.is_empty(), "{passed:?}");
    assert_eq!(client.row("a").await.grant_id, None);
    client.check().await;
}

pub(crate) async fn a_waiter_leaves<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let (first, second) = (client.wait("a").await, client.wait("a").await);
    let leave = first.leaves();
    assert_eq!(client.pass("a", leave).await, PassOutcome::NOTHING);
    assert_eq!(client.look(&first).await, LookOutcome::Gone);
    let row = client.row("a").await;
    assert!(row.is_of(held.params.grant_id) && row.is_live());
    assert_eq!(row.waiters, 1);
    client.check().await;
    // Sent twice.
    assert_eq!(client.pass("a", leave).await, PassOutcome::NOTHING);
    client.check().await;
    let passed = client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    assert!(client.is_next(&passed, &second), "{passed:?}");
    // The last waiter leaves a name whose grant has expired.
    let third = client.wait("a").await;
    client.expire_grants().await;
    let leave = third.leaves();
    let passed = client.pass("a", leave).await;
    assert_eq!(passed, PassOutcome::NOTHING);
    assert_eq!(client.row("a").await.grant_id, None);
    client.check().await;
}

pub(crate) async fn a_waiter_leaves_when_it_was_just_granted_the_name<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let (first, second) = (client.wait("a").await, client.wait("a").await);
    client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    let leave = first.leaves();
    let passed = client.pass("a", leave).await;
    assert!(client.is_next(&passed, &second), "{passed:?}");
    assert_eq!(passed.ended, EndedGrant::Live);
    client.check().await;
}

pub(crate) async fn a_confirm_that_is_too_late_holds_nothing<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let waits = client.wait("a").await;
    client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    client.expire_grants().await;
    assert_eq!(client.confirm(&waits).await, ConfirmOutcome::Gone);
    assert_eq!(client.look(&waits).await, LookOutcome::Gone);
    assert!(!client.row("a").await.is_live());
}

pub(crate) async fn a_window_that_is_over_is_passed_on<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let (first, second) = (client.wait("a").await, client.wait("a").await);
    client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        PassOutcome::NOTHING,
        "the window is open"
    );
    client.expire_grants().await;
    let looked = client.look(&second).await;
    let due = LookOutcome::Waiting {
        is_orphaned: true,
        remaining: Duration::ZERO,
    };
    assert_eq!(looked, due);
    let passed = client.pass("a", PassWhy::Orphaned).await;
    assert!(client.is_next(&passed, &second), "{passed:?}");
    assert_eq!(passed.ended, EndedGrant::Nothing);
    assert_eq!(client.confirm(&first).await, ConfirmOutcome::Gone);
    // The late one's release finds that the name has another grant.
    let passed = client
        .pass("a", PassWhy::Ended(first.params.grant_id))
        .await;
    assert_eq!(passed, PassOutcome::NOTHING);
    assert!(matches!(
        client.confirm(&second).await,
        ConfirmOutcome::Held { .. }
    ));
}

pub(crate) async fn only_what_is_due_is_passed_on<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        PassOutcome::NOTHING,
        "no row"
    );
    let held = client.hold("a").await;
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        PassOutcome::NOTHING,
        "held"
    );
    let stranger = PassWhy::Ended(Uuid::new_v4());
    assert_eq!(client.pass("a", stranger).await, PassOutcome::NOTHING);
    client.release(held.params.grant_id, "a", held.fence).await;
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        PassOutcome::NOTHING,
        "free"
    );
    assert_eq!(client.pass("a", stranger).await, PassOutcome::NOTHING);
    client.hold("a").await;
    client.expire_grants().await;
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        PassOutcome::NOTHING
    );
    assert_eq!(client.row("a").await.grant_id, None);
}

pub(crate) async fn the_lock_of_an_expired_session_is_passed_on<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut holder = Client::new(place).await;
    let params = JoinParams {
        in_session: true,
        ttl: crate::store::verbs::lease::FOR_EVER,
        ..holder.ask("a")
    };
    assert!(matches!(
        holder.join(&params).await,
        JoinOutcome::Granted { .. }
    ));
    holder.expire().await;
    let params = client.ask("a");
    let joined = client.join(&params).await;
    let JoinOutcome::Queued {
        position,
        is_orphaned: true,
        ..
    } = joined
    else {
        panic!("{joined:?}");
    };
    let waits = Waits { params, position };
    let looked = client.look(&waits).await;
    assert!(
        matches!(
            looked,
            LookOutcome::Waiting {
                is_orphaned: true,
                ..
            }
        ),
        "{looked:?}"
    );
    let passed = client.pass("a", PassWhy::Orphaned).await;
    assert!(client.is_next(&passed, &waits), "{passed:?}");
    assert_eq!(client.row("a").await.session, None);
    client.check().await;
    // Its session has ended for good: no renewal in flight revives it.
    let ended = format!(
        "SELECT count(*) FROM rowlock_session WHERE holder = '{}' AND expires_at IS NOT NULL",
        holder.session
    );
    assert_eq!(P::numbers(&mut client.conn, &ended).await, [0]);
}

/// Another transaction has the row of the session locked.
pub(crate) async fn the_lock_of_a_session_that_cannot_end_now_is_locked<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let (mut holder, mut other) = (Client::new(place).await, Client::new(place).await);
    let params = JoinParams {
        in_session: true,
        ttl: crate::store::verbs::lease::FOR_EVER,
        ..holder.ask("a")
    };
    holder.join(&params).await;
    let waits = client.wait("a").await;
    holder.expire().await;
    other.run("BEGIN").await;
    other
        .run("UPDATE rowlock_session SET forced = forced + 1")
        .await;
    assert_eq!(client.try_pass("a", PassWhy::Orphaned).await, None);
    other.run("ROLLBACK").await;
    let passed = client.pass("a", PassWhy::Orphaned).await;
    assert!(client.is_next(&passed, &waits), "{passed:?}");
    client.check().await;
}

pub(crate) async fn a_session_that_lives_keeps_its_lock<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut holder = Client::new(place).await;
    let params = JoinParams {
        in_session: true,
        ttl: crate::store::verbs::lease::FOR_EVER,
        ..holder.ask("a")
    };
    holder.join(&params).await;
    let waits = client.wait("a").await;
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        PassOutcome::NOTHING
    );
    let looked = client.look(&waits).await;
    let LookOutcome::Waiting {
        is_orphaned: false,
        remaining,
    } = looked
    else {
        panic!("{looked:?}");
    };
    assert!(remaining <= TTL, "not the row's time: {remaining:?}");
    assert!(client.row("a").await.is_live());
}

/// A waiter that has died keeps nobody waiting for a window that is longer than its session.
pub(crate) async fn a_window_ends_with_the_session_of_its_waiter<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    // On a busy machine, what comes before the turn takes a while.
    let ttl = WINDOW * 3 / 4;
    let mut brief = Client::<P>::with_ttl(place, ttl).await;
    let waits = brief.wait("a").await;
    let passed = client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    assert!(brief.is_next(&passed, &waits), "{passed:?}");
    let left = client.row("a").await.remaining.unwrap();
    assert!(left <= to_micros(ttl), "longer than its session: {left}");
}
