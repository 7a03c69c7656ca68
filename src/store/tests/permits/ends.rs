//! Permits and waiters that end by themselves.

use rowlock_test::takes_less_than;

use super::*;
use crate::model::FaultKind;

pub(crate) async fn an_expired_permit_is_given_to_others(place: &impl Place) {
    let mut client = Client::new(place).await;
    let (first, second) = (client.permit(TWO, 1).await, client.permit(TWO, 1).await);
    let waits = client.waits(TWO, 1).await;
    client.expire_permit(&first).await;
    assert!(is_orphaned(&client.looks(&waits).await));
    let granted = waits.params.join.grant_id;
    assert_eq!(client.passes(PassWhy::Orphaned).await, granted_to(granted));
    assert_eq!(client.releases(&first).await, FreeOutcome::Superseded);
    client.expire_permit(&second).await;
    assert_eq!(client.releases(&second).await, FreeOutcome::Expired);
    // Without a waiter, the next one who asks finds it.
    let third = client.permit(TWO, 1).await;
    client.expire_permit(&third).await;
    let _ = client.permit(TWO, 1).await;
    assert_eq!(client.used().await, [2, 2]);
    client.check().await;
}

pub(crate) async fn a_window_that_is_over_costs_the_permit(place: &impl Place) {
    let mut client = Client::new(place).await;
    let held = client.permit(TWO, 2).await;
    let (first, second) = (client.waits(TWO, 2).await, client.waits(TWO, 2).await);
    assert!(matches!(
        client.releases(&held).await,
        FreeOutcome::Passed(_)
    ));
    client.expire_grants().await;
    assert_eq!(client.confirms(&first).await, ConfirmOutcome::Gone);
    assert!(is_orphaned(&client.looks(&second).await));
    let granted = second.params.join.grant_id;
    assert_eq!(client.passes(PassWhy::Orphaned).await, granted_to(granted));
    assert_eq!(client.looks(&first).await, LookOutcome::Gone);
    assert_eq!(client.used().await, [2, 2]);
    client.check().await;
}

pub(crate) async fn permits_end_with_their_session(place: &impl Place) {
    let (mut dies, mut client) = (Client::new(place).await, Client::new(place).await);
    let _ = dies.permit_in_session(TWO, 1).await;
    let _ = client.permit_in_session(TWO, 1).await;
    let waits = client.waits(TWO, 1).await;
    assert!(waits_on(&client.looks(&waits).await));
    assert_eq!(client.passes(PassWhy::Orphaned).await, PassOutcome::NOTHING);
    dies.expire().await;
    assert!(is_orphaned(&client.looks(&waits).await));
    let granted = waits.params.join.grant_id;
    assert_eq!(client.passes(PassWhy::Orphaned).await, granted_to(granted));
    assert_eq!(dies.conn.session_end(dies.session).await.unwrap(), 0);
    assert_eq!(client.used().await, [2, 2]);

    // A session that was closed.
    let waits = client.waits(TWO, 1).await;
    let mut closes = Client::new(place).await;
    assert_eq!(client.confirms(&waits).await, ConfirmOutcome::Gone);
    let later = closes.waits(TWO, 1).await;
    assert_eq!(client.conn.session_end(client.session).await.unwrap(), 1);
    // Where waiters are told, it is passed on at once.
    if closes.looks(&later).await != LookOutcome::Granted {
        assert!(is_orphaned(&closes.looks(&later).await));
        let granted = later.params.join.grant_id;
        assert_eq!(closes.passes(PassWhy::Orphaned).await, granted_to(granted));
    }
    assert_eq!(closes.looks(&later).await, LookOutcome::Granted);
    closes.check().await;
}

pub(crate) async fn dead_waiters_for_permits_are_passed_over(place: &impl Place) {
    let (mut dies, mut client) = (Client::new(place).await, Client::new(place).await);
    let held = client.permit(TWO, 1).await;
    let _ = dies.waits(TWO, 2).await;
    let alive = client.waits(TWO, 1).await;
    assert!(waits_on(&client.looks(&alive).await));
    dies.expire().await;
    assert!(is_orphaned(&client.looks(&alive).await), "it fits now");
    let granted = alive.params.join.grant_id;
    assert_eq!(client.passes(PassWhy::Orphaned).await, granted_to(granted));
    client.check().await;
    assert_eq!(client.releases(&held).await, FreeOutcome::Released);
}

pub(crate) async fn a_pinned_permit_is_not_given_to_others(place: &impl Place) {
    let (mut pins, mut client) = (Client::new(place).await, Client::new(place).await);
    // It has to be pinned before it is over. A machine that is busy takes longer over that.
    let mut ttl = Duration::from_secs(1);
    let waits = loop {
        match pinned_and_wanted(&mut pins, &mut client, ttl).await {
            Some(waits) => break waits,
            None => ttl *= 2,
        }
    };
    while !is_orphaned(&client.looks(&waits).await) {
        tokio::task::yield_now().await;
    }
    let pass = PassParams {
        name: named("a"),
        why: PassWhy::Orphaned,
    };
    // On SQLite the transaction has the whole file.
    let passed = client.conn.permit_pass(&pass).await.unwrap();
    assert!(
        passed.is_none_or(|passed| passed == PassOutcome::NOTHING),
        "it is pinned"
    );
    pins.run("COMMIT").await;
    let granted = waits.params.join.grant_id;
    assert_eq!(client.passes(PassWhy::Orphaned).await, granted_to(granted));
    client.check().await;
}

/// A permit of `pins`, which has a transaction that pins it, and one who waits for it. `None`: the permit was over
/// before.
async fn pinned_and_wanted<P: Place>(
    pins: &mut Client<P>,
    client: &mut Client<P>,
    ttl: Duration,
) -> Option<Asked> {
    let mut params = pins.asks(TWO, 2, false);
    params.join.ttl = ttl;
    let JoinOutcome::Granted { .. } = pins.joins_permits(&params).await else {
        panic!("it is free");
    };
    let waits = client.asks(TWO, 1, false);
    let joined = client.joins_permits(&waits).await;
    pins.run("BEGIN").await;
    let pin = PinParams {
        name: named("a").permit(params.join.grant_id),
        grant_id: params.join.grant_id,
        by: PinBy::Lock,
    };
    let pinned = pins.conn.tx_pin(&pin).await.unwrap().found;
    if let (JoinOutcome::Queued { position, .. }, PinOutcome::Live) = (joined, pinned) {
        return Some(Asked {
            params: waits,
            number: position,
        });
    }
    pins.run("ROLLBACK").await;
    for table in ["rowlock_waiter", "rowlock_lock"] {
        client.run(&format!("DELETE FROM {table}")).await;
    }
    None
}

/// A client that releases what it has pinned keeps nobody else from the name.
pub(crate) async fn a_pinned_permit_is_released_without_a_wait<P: Place>(place: &P) {
    let (mut pins, mut client) = (Client::new(place).await, Client::new(place).await);
    let permit = client.permit(TWO, 1).await;
    pins.run("BEGIN").await;
    let pin = PinParams {
        name: named("a").permit(permit.params.join.grant_id),
        grant_id: permit.params.join.grant_id,
        by: PinBy::Lock,
    };
    let pinned = pins.conn.tx_pin(&pin).await.unwrap().found;
    assert_eq!(pinned, PinOutcome::Live);
    let weigh = WeighParams {
        name: named("a"),
        grant_id: permit.params.join.grant_id,
        fence: permit.number,
        weight: 2,
    };
    let why = PassWhy::Ended(permit.params.join.grant_id);
    let name = named("a");
    let pass = PassParams { name, why };
    takes_less_than(P::ROW_WAIT, async || {
        assert_eq!(client.conn.permit_pass(&pass).await.unwrap(), None);
    })
    .await;
    takes_less_than(P::ROW_WAIT, async || {
        assert_eq!(client.conn.permit_weigh(&weigh).await.unwrap(), None);
    })
    .await;
    pins.run("COMMIT").await;
    assert_eq!(client.releases(&permit).await, FreeOutcome::Released);
    assert_eq!(client.used().await, [0, 0]);
}

/// A person has removed the rows of some permits.
pub(crate) async fn permits_that_were_removed_are_not_waited_for(place: &impl Place) {
    let three = Kind::Semaphore { capacity: 3 };
    let mut client = Client::new(place).await;
    let removed = client.permit(three, 2).await;
    let _ = client.permit(three, 1).await;
    let waits = client.waits(three, 1).await;
    assert!(waits_on(&client.looks(&waits).await));
    let remove = format!(
        "DELETE FROM rowlock_lock WHERE fence = {} AND weight = 2",
        removed.number
    );
    client.run(&remove).await;
    let granted = waits.params.join.grant_id;
    assert_eq!(client.passes(PassWhy::Orphaned).await, granted_to(granted));
    assert_eq!(client.used().await, [2, 2]);
    client.check().await;
}

/// Another client reclaims all the time.
pub(crate) async fn a_session_ends_with_all_its_permits<P: Place>(place: &P) {
    for _ in 0..20 {
        let (mut dies, mut client) = (Client::new(place).await, Client::new(place).await);
        for _ in 0..2 {
            let _ = dies.permit_in_session(TWO, 1).await;
        }
        let waits = client.waits(TWO, 2).await;
        let reclaims = tokio::spawn(async move {
            loop {
                match client.looks(&waits).await {
                    LookOutcome::Granted => break,
                    LookOutcome::Gone => panic!("a turn was lost"),
                    LookOutcome::Waiting { .. } => client.passes(PassWhy::Orphaned).await,
                };
            }
            client.releases(&waits).await
        });
        let freed = loop {
            match dies.conn.session_end(dies.session).await {
                // SQLite: the file is busy.
                Err(fault) if fault.kind == FaultKind::LockTimeout => {}
                ended => break ended.unwrap(),
            }
        };
        assert_eq!(freed, 2);
        assert_eq!(reclaims.await.unwrap(), FreeOutcome::Released);
    }
}

/// How many rows of names have a time before which none of their permits is looked at.
const NOTED: &str = "SELECT count(*) FROM rowlock_lock WHERE reclaim_at IS NOT NULL";

/// A name whose note is later than the end of a permit.
const TOO_LATE: &str = "
SELECT count(*) FROM rowlock_lock k JOIN rowlock_lock p ON p.weight > 0 AND p.expires_at < k.reclaim_at";

/// One look is enough for all who find the name full in the next 100 ms.
pub(crate) async fn a_full_name_is_looked_at_once_for_a_while<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let forget = "UPDATE rowlock_lock SET reclaim_at = NULL";
    let expire = format!(
        "UPDATE rowlock_lock SET expires_at = {} WHERE weight > 0",
        P::AGO
    );
    loop {
        let held = client.permit(TWO, 2).await;
        assert_eq!(P::numbers(&mut client.conn, NOTED).await, [0]);
        let first = client.waits(TWO, 1).await;
        assert_eq!(P::numbers(&mut client.conn, NOTED).await, [1]);
        assert_eq!(client.passes(first.leaves()).await, PassOutcome::NOTHING);
        // The permit ends, and the next request does not read it.
        client.run(&expire).await;
        let asks = client.asks(TWO, 1, false);
        let joined = client.joins_permits(&asks).await;
        if let JoinOutcome::Queued { .. } = joined {
            // Who finds the name orphaned reads it.
            let granted = asks.join.grant_id;
            assert_eq!(client.passes(PassWhy::Orphaned).await, granted_to(granted));
            assert_eq!(client.releases(&held).await, FreeOutcome::Superseded);
            break;
        }
        // The 100 ms were over: this machine is slow.
        assert!(matches!(joined, JoinOutcome::Granted { .. }), "{joined:?}");
        client.run("DELETE FROM rowlock_lock").await;
    }
    client.check().await;
    client.run(&expire).await;
    client.run(forget).await;
    let _ = client.permit(TWO, 2).await;
}

/// The clock was set back since.
pub(crate) async fn a_note_of_a_later_time_counts_for_nothing<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.permit(TWO, 2).await;
    client.expire_permit(&held).await;
    let in_a_minute = P::AGO.replace(" - ", " + ");
    let later = format!("UPDATE rowlock_lock SET reclaim_at = {in_a_minute}");
    client.run(&later).await;
    let _ = client.permit(TWO, 1).await;
    assert_eq!(client.used().await, [1, 1]);
}

/// Even of a lease that is shorter than any that a caller may ask for.
pub(crate) async fn a_full_name_is_looked_at_again_when_a_permit_ends<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    loop {
        let mut short = client.asks(TWO, 2, false);
        short.join.ttl = Duration::from_millis(50);
        let joined = client.joins_permits(&short).await;
        assert!(matches!(joined, JoinOutcome::Granted { .. }), "{joined:?}");
        let waits = client.asks(TWO, 1, false);
        let joined = client.joins_permits(&waits).await;
        if matches!(joined, JoinOutcome::Queued { .. }) {
            break;
        }
        // It had ended already: this machine is slow.
        client.run("DELETE FROM rowlock_lock").await;
    }
    assert_eq!(P::numbers(&mut client.conn, NOTED).await, [1]);
    assert_eq!(P::numbers(&mut client.conn, TOO_LATE).await, [0]);
}

/// A session may be ended at any time, and then its permits are free at once.
pub(crate) async fn a_full_name_with_permits_of_a_session_is_looked_at_each_time<P: Place>(
    place: &P,
) {
    let (mut closes, mut client) = (Client::new(place).await, Client::new(place).await);
    let _ = closes.permit_in_session(TWO, 1).await;
    let _ = client.permit(TWO, 1).await;
    let full = PermitParams {
        join: JoinParams {
            most: 0,
            ..client.ask("a")
        },
        ..client.asks(TWO, 1, false)
    };
    let joined = client.joins_permits(&full).await;
    assert!(matches!(joined, JoinOutcome::Full(_)), "{joined:?}");
    assert_eq!(P::numbers(&mut client.conn, NOTED).await, [0]);
    assert_eq!(
        closes.conn.session_end(closes.session).await.unwrap(),
        1,
        "its permit is freed"
    );
    let _ = client.permit(TWO, 1).await;
    client.check().await;
}
