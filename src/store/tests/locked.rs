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

/// A request waits for a few locked rows. Others have their turn when it is repeated, while these stay locked.
pub(crate) async fn many_locked_rows_do_not_hold_up_a_request<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut other = Client::new(place).await;
    let mut waits_for_its_turn = false;
    // The first one is chosen at random: in three of four rounds, some that are free come after five locked ones.
    for round in 0..10 {
        let (mut releases, mut locks) = (Vec::new(), Vec::new());
        for n in 0..22 {
            let name = format!("{round} {n:02}");
            let held = client.hold(&name).await;
            client.wait(&name).await;
            releases.push(ReleaseParams {
                name: named(&name),
                grant_id: held.params.grant_id,
                fence: held.fence,
                was_queued: false,
            });
            locks.push(format!(
                "UPDATE rowlock_lock SET waiters = waiters WHERE name = '{name}'"
            ));
        }
        other.run(P::LOCK.split(';').next().unwrap()).await;
        for lock in &locks[..12] {
            other.run(lock).await;
        }
        let mut free = releases[12..].to_vec();
        while !free.is_empty() && !P::LOCKS_ALL {
            let all = [&releases[..12], &free].concat();
            let released = client.conn.lease_release(&all).await.unwrap();
            let mut outcomes = released[12..].iter();
            free.retain(|_| outcomes.next() == Some(&FreeOutcome::Locked));
            waits_for_its_turn |= !free.is_empty();
        }
        other.run("ROLLBACK").await;
        if waits_for_its_turn || P::LOCKS_ALL {
            return;
        }
    }
    panic!("all have their turn at once");
}
