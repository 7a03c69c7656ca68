//! Rows that a transaction has locked.

use rowlock_test::takes_less_than;

use super::*;
use crate::model::FaultKind;

/// While the transaction goes on.
pub(crate) async fn a_locked_row_is_given_up_soon<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut other = Client::new(place).await;
    let held = client.hold("a").await;
    let first = client.wait("a").await;
    client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    let second = client.wait("a").await;
    // A later confirm is not too late then.
    assert!(matches!(
        client.confirm(&first).await,
        ConfirmOutcome::Held { .. }
    ));
    let params = client.ask("a");
    other.run(P::LOCK).await;

    for _ in 0..3 {
        // One that waits as long as the session lets it takes at least a second.
        takes_less_than(Duration::from_secs(1), async || {
            let joined = client.try_join(&params).await;
            assert!(joined.is_none(), "{joined:?}");
            let release = PassWhy::Ended(first.params.grant_id);
            for why in [PassWhy::Orphaned, second.leaves(), release] {
                assert_eq!(client.try_pass("a", why).await, None);
            }
            assert_eq!(client.try_confirm(&first).await, None);
        })
        .await;
        // A look waits for nothing.
        let looked = client.look(&second).await;
        assert!(matches!(looked, LookOutcome::Waiting { .. }), "{looked:?}");
    }
    other.run("ROLLBACK").await;

    // Nothing has happened, and nothing is left open: another connection sees what this one writes, and can write
    // itself.
    assert_eq!(other.row("a").await.waiters, 1);
    other.check().await;
    client.hold("b").await;
    let after = client.wait("b").await;
    let looked = other.look(&after).await;
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
}

/// A request waits for a few locked rows. Those behind them are asked again with the next one.
pub(crate) async fn many_locked_rows_do_not_hold_up_a_request<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut other = Client::new(place).await;
    let (mut releases, mut waiting) = (Vec::new(), Vec::new());
    for name in ["a", "b", "c", "d", "e", "f"] {
        let held = client.hold(name).await;
        waiting.push(client.wait(name).await.params.grant_id);
        releases.push(ReleaseParams {
            name: named(name),
            grant_id: held.params.grant_id,
            fence: held.fence,
            was_queued: false,
        });
    }
    let begin = P::LOCK.split(';').next().unwrap();
    other.run(begin).await;
    for name in ["a", "b", "c", "d", "e"] {
        let lock = format!("UPDATE rowlock_lock SET waiters = waiters WHERE name = '{name}'");
        other.run(&lock).await;
    }
    match client.conn.lease_release(&releases).await {
        Err(fault) if P::LOCKS_ALL => assert_eq!(fault.kind, FaultKind::LockTimeout),
        // Also the one that is not locked.
        released => assert_eq!(released.unwrap(), [const { FreeOutcome::Locked }; 6]),
    }
    other.run("ROLLBACK").await;
    let released = client.conn.lease_release(&releases).await.unwrap();
    let passed: Vec<_> = waiting
        .iter()
        .map(|it| FreeOutcome::Passed(vec![*it]))
        .collect();
    assert_eq!(released, passed);
}
