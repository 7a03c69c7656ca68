//! Exchanges that wait for locked rows, and exchanges that skip them.

use std::time::Instant;

use super::*;
use crate::store::postgres::exchange::{LOCKED_ROWS, LockedRows};
use crate::store::queue_cases::exchange as cases;

fn take(name: &str) -> TakeAsk {
    TakeAsk {
        name: named(name),
        grant_id: Uuid::new_v4(),
        ttl: TTL,
        holder: "taker".into(),
        session: None,
        barging: false,
    }
}

async fn held(client: &mut Client<Schema>, name: &str) -> ReleaseAsk {
    let held = client.hold(name).await;
    ReleaseAsk {
        name: held.ask.name,
        grant_id: held.ask.grant_id,
        fence: held.fence,
        was_queued: false,
    }
}

/// Connections that skip locked rows, like those with transactions of their own.
#[tokio::test]
async fn exchanges_that_skip_locked_rows_promise_the_same() {
    let skipped = async {
        cases::an_exchange_is_releases_and_takes(&Schema::new().await).await;
        cases::an_exchange_keeps_its_asks_apart(&Schema::new().await).await;
        cases::an_exchange_leaves_waiters_alone(&Schema::new().await).await;
        cases::an_exchange_waits_for_no_transaction(&Schema::new().await).await;
        cases::an_exchange_that_fails_leaves_nothing_open(&Schema::new().await).await;
        cases::an_exchange_takes_what_the_dead_left_and_barges(&Schema::new().await).await;
        cases::an_exchange_passes_on_what_was_passed_on(&Schema::new().await).await;
    };
    LOCKED_ROWS.scope(LockedRows::Skipped, skipped).await;
}

/// The first exchange that meets a locked row waits for it, in vain, and then leaves it out. The next ones do not wait.
#[tokio::test]
async fn after_a_wait_in_vain_locked_rows_are_skipped() {
    let place = Schema::new().await;
    let (mut client, mut other) = (Client::new(&place).await, Client::new(&place).await);
    let b = held(&mut client, "b").await;
    let others = [held(&mut client, "a").await, held(&mut client, "c").await];
    let pin = "BEGIN; SELECT * FROM rowlock_lock WHERE name = 'b' FOR SHARE";
    other.run(pin).await;
    let rows = LockedRows::default();
    for mine in others {
        let (releases, takes) = ([b.clone(), mine], [take("d")]);
        let exchange = client.conn.lease_exchange(&releases, &takes);
        let (freed, taken) = LOCKED_ROWS.scope(rows.clone(), exchange).await.unwrap();
        assert_eq!(freed, [Freed::Locked, Freed::Released]);
        let [Taken::Granted { fence }] = taken[..] else {
            panic!("{taken:?}");
        };
        client.release(takes[0].grant_id, "d", fence).await;
        assert!(!rows.are_waited_for(Instant::now()));
    }
    other.run("ROLLBACK").await;
    let (releases, takes) = ([b], [take("f")]);
    let exchange = client.conn.lease_exchange(&releases, &takes);
    let (freed, _) = LOCKED_ROWS.scope(rows, exchange).await.unwrap();
    assert_eq!(freed, [Freed::Released]);
}

/// A waiter joins while the exchange waits for the row. Then the name is passed on to it, and not freed.
#[tokio::test]
async fn an_exchange_sees_what_it_has_waited_for() {
    let place = Schema::new().await;
    let mut client = Client::new(&place).await;
    let (mut other, mut watcher) = (Client::new(&place).await, Client::new(&place).await);
    let process = process(&mut client).await;
    // The exchange waits for some milliseconds: the other transaction may end too late.
    let (mut waits_in_time, mut rounds) = (false, 0);
    while !waits_in_time {
        rounds += 1;
        assert!(rounds <= 200, "no exchange has waited long enough");
        let name = format!("n{rounds}");
        let releases = [held(&mut client, &name).await];
        other.run("BEGIN").await;
        let next = other.wait(&name).await;
        let rows = LockedRows::default();
        let takes = [take(&format!("{name} other"))];
        let exchange = client.conn.lease_exchange(&releases, &takes);
        let commit = async {
            is_blocked(&mut watcher, process).await;
            other.run("COMMIT").await;
        };
        let exchange = LOCKED_ROWS.scope(rows.clone(), exchange);
        let (exchanged, ()) = tokio::join!(exchange, commit);
        let (freed, _) = exchanged.unwrap();
        waits_in_time = rows.are_waited_for(Instant::now());
        if waits_in_time {
            assert_eq!(freed, [Freed::Passed(vec![next.ask.grant_id])]);
        }
        watcher.check().await;
    }
}
