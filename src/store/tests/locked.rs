//! Rows that a transaction has locked.

use rowlock_test::takes_less_than;

use super::*;

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
