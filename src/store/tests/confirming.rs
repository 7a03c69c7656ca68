//! Confirming a grant, within the window.

use super::*;
use crate::store::verbs::queue::WINDOW;
use crate::store::verbs::time::{micros, to_micros};

pub(crate) async fn a_confirm_in_time_holds<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let waits = client.wait("a").await;
    assert_eq!(
        client.confirm(&waits).await,
        ConfirmOutcome::Gone,
        "not granted yet"
    );
    client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    let row = client.row("a").await;
    let left = row.remaining.unwrap();
    assert!((1..=to_micros(WINDOW)).contains(&left), "{left}");
    let params = ConfirmParams {
        name: named("a"),
        grant_id: waits.params.grant_id,
        ttl: TTL,
        session: Some(client.session),
        fences: 0,
    };
    for _ in 0..2 {
        let confirmed = client.conn.queue_confirm(&params).await.unwrap();
        assert_eq!(
            confirmed,
            Some(ConfirmOutcome::Held {
                fence: row.fence,
                reserved: FenceBlock::default()
            })
        );
        let row = client.row("a").await;
        assert!(row.remaining.unwrap() > 20_000_000, "{row:?}");
        assert_eq!(row.session, Some(client.session));
    }
}

pub(crate) async fn fences_are_reserved_unless_they_are_ahead_of_the_clock<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let waits = client.wait("a").await;
    client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    let mut row = client.row("a").await;
    let params = ConfirmParams {
        name: named("a"),
        grant_id: waits.params.grant_id,
        ttl: TTL,
        session: None,
        fences: 100,
    };
    for (ahead, count, is_awaited) in [(0, 100, false), (10_000_000, 0, true)] {
        let run_ahead = format!("UPDATE rowlock_lock SET fence = fence + {ahead}");
        client.run(&run_ahead).await;
        let fence = row.fence + ahead + count;
        let reserved = FenceBlock { count, is_awaited };
        let confirmed = client.conn.queue_confirm(&params).await.unwrap();
        assert_eq!(confirmed, Some(ConfirmOutcome::Held { fence, reserved }));
        row = client.row("a").await;
        assert_eq!(row.fence, fence);
        client.wait("a").await;
    }
    // The next grant is above all of them.
    client.pass("a", PassWhy::Ended(params.grant_id)).await;
    assert!(client.row("a").await.fence > row.fence);
}

/// A sending that arrives late does not shorten what a renewal has extended, or a release has left, meanwhile.
pub(crate) async fn a_second_confirm_moves_no_expiry_back<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let waits = client.wait("a").await;
    client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    let mut params = ConfirmParams {
        name: named("a"),
        grant_id: waits.params.grant_id,
        ttl: TTL / 60,
        session: None,
        fences: 0,
    };
    // The TTL counts, though it is shorter than the window.
    for (ttl, least, most) in [(TTL / 60, 0, 60), (TTL, 2, 1), (TTL / 10, 2, 1)] {
        params.ttl = ttl;
        // A permit that was released in a while has left its session.
        params.session = (ttl == TTL / 10).then_some(client.session);
        let confirmed = client.conn.queue_confirm(&params).await.unwrap();
        assert!(matches!(confirmed, Some(ConfirmOutcome::Held { .. })));
        let row = client.row("a").await;
        assert_eq!(row.session, None);
        let left = micros(row.remaining.unwrap());
        let least = TTL.checked_div(least).unwrap_or_default();
        assert!(left > least && left <= TTL / most, "{left:?}");
    }
}
