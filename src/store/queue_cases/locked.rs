//! Rows that a transaction has locked.

use std::time::{Duration, Instant};

use super::*;

/// The longest time that a verb may wait.
const SOON: Duration = Duration::from_millis(100);

pub(crate) async fn a_locked_row_is_given_up_soon<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut other = Client::new(place).await;
    let held = client.hold("a").await;
    let first = client.wait("a").await;
    client.pass("a", Some((held.ask.grant_id, None))).await;
    let second = client.wait("a").await;
    // A later confirm is not too late then.
    assert!(matches!(
        client.confirm(&first).await,
        Confirmed::Held { .. }
    ));
    let ask = client.ask("a");
    other.run(P::LOCK).await;

    for _ in 0..3 {
        let began = Instant::now();
        let joined = client.join(&ask).await;
        assert!(matches!(joined, Joined::Locked), "{joined:?}");
        let leave = Some((second.ask.grant_id, Some(second.position)));
        let release = Some((first.ask.grant_id, None));
        for of in [None, leave, release] {
            assert_eq!(client.pass("a", of).await, Passed::Locked);
        }
        assert_eq!(client.confirm(&first).await, Confirmed::Locked);
        let each = began.elapsed() / 5;
        assert!(each < SOON, "{each:?}");
        // A look waits for nothing.
        let looked = client.look(&second).await;
        assert!(matches!(looked, Looked::Waiting { .. }), "{looked:?}");
    }
    other.run("ROLLBACK").await;

    // Nothing has happened, and nothing is left open: another connection sees what this one writes, and can write itself.
    assert_eq!(other.row("a").await.waiters, 1);
    other.check().await;
    client.hold("b").await;
    let after = client.wait("b").await;
    let looked = other.look(&after).await;
    assert!(
        matches!(
            looked,
            Looked::Waiting {
                is_stuck: false,
                ..
            }
        ),
        "{looked:?}"
    );
}
