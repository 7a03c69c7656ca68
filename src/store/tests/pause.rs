//! What the verbs do with the row of a paused name.

use super::*;
use crate::model::Kind;
use crate::store::tests::permits::{TWO, granted_to, is_orphaned};
use crate::store::verbs::pause::{NO_END, PauseParams, PauseRow};

/// Longer than a TTL.
const LONG: Duration = Duration::from_mins(10);

impl<P: Place> Client<P> {
    async fn pause(&mut self, name: &str, time: Option<Duration>) -> PauseRow {
        let params = PauseParams {
            name: named(name),
            time,
            by: "ops".into(),
            why: "a test".into(),
        };
        self.conn.pause_begin(&params, TTL).await.unwrap()
    }

    async fn resume(&mut self, name: &str) {
        self.conn.pause_end(&named(name), TTL).await.unwrap();
    }
}

/// It waits for the end of the pause, which comes after every TTL.
fn waits_for_the_end(looked: &LookOutcome) -> bool {
    matches!(looked, LookOutcome::Waiting { is_orphaned: false, remaining } if *remaining > TTL && *remaining <= LONG)
}

pub(crate) async fn the_waiters_for_a_paused_name_look_again_at_its_end<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    let first = client.wait("a").await;
    let pause = client.pause("a", Some(LONG)).await;
    assert!(pause.left > 0 && pause.until < NO_END, "{pause:?}");
    let row = client.row("a").await.pause.expect("it is in the row");
    assert_eq!(
        (row.until, row.by, row.why),
        (pause.until, pause.by, pause.why)
    );
    assert!(waits_for_the_end(&client.look(&first).await));

    // A release frees it, and passes it on to nobody.
    let freed = client.release(held.params.grant_id, "a", held.fence).await;
    assert_eq!(freed, FreeOutcome::Released);
    let next = client.ask("a");
    let joined = client.join(&next).await;
    let is_last = matches!(
        joined,
        JoinOutcome::Queued {
            is_orphaned: false,
            ..
        }
    );
    assert!(is_last, "{joined:?}");
    let taken = client.take("a").await;
    assert!(
        matches!(&taken, TakeOutcome::Busy(Some(row)) if row.pause.is_some()),
        "{taken:?}"
    );
    assert!(client.pass("a", PassWhy::Orphaned).await.next.is_empty());
    assert!(waits_for_the_end(&client.look(&first).await));
    let left = PassWhy::Left {
        grant_id: next.grant_id,
        at: None,
    };
    assert!(client.pass("a", left).await.next.is_empty());
    client.check().await;

    client.resume("a").await;
    client.resume("a").await;
    assert!(is_orphaned(&client.look(&first).await));
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        granted_to(first.params.grant_id)
    );
    // It may confirm in a pause that has begun since. Its lease does not linger.
    assert_eq!(client.pause("a", None).await.until, NO_END);
    let ConfirmOutcome::Held { reserved, .. } = client.confirm(&first).await else {
        panic!("its window is not over");
    };
    assert!(reserved.is_awaited);
    client.check().await;
}

pub(crate) async fn an_expired_lease_of_a_paused_name_is_passed_on_after_it<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    client.hold("a").await;
    let waits = client.wait("a").await;
    client.pause("a", Some(LONG)).await;
    client.expire_grants().await;
    assert!(waits_for_the_end(&client.look(&waits).await));
    assert!(client.pass("a", PassWhy::Orphaned).await.next.is_empty());
    client.resume("a").await;
    assert!(is_orphaned(&client.look(&waits).await));
    assert_eq!(
        client.pass("a", PassWhy::Orphaned).await,
        granted_to(waits.params.grant_id)
    );
}

pub(crate) async fn the_waiters_for_permits_of_a_paused_name_look_again_at_its_end<P: Place>(
    place: &P,
) {
    let mut client = Client::new(place).await;
    let held = client.permit(TWO, 1).await;
    client.pause("a", Some(LONG)).await;
    let waits = client.waits(TWO, 1).await;
    assert!(waits_for_the_end(&client.looks(&waits).await));
    assert_eq!(client.weighs(&held, 2).await, WeighOutcome::Full);
    assert_eq!(client.releases(&held).await, FreeOutcome::Released);
    assert!(client.passes(PassWhy::Orphaned).await.next.is_empty());
    assert!(waits_for_the_end(&client.looks(&waits).await));
    assert_eq!(client.used().await[0], 0);
    client.resume("a").await;
    assert!(is_orphaned(&client.looks(&waits).await));
    let grant_id = waits.params.join.grant_id;
    assert_eq!(client.passes(PassWhy::Orphaned).await, granted_to(grant_id));
    client.check().await;
}

/// The names that are paused.
async fn paused<P: Place>(client: &mut Client<P>) -> Vec<Vec<u8>> {
    let rows = client.conn.list_rows(&KeyRange::of_prefix(b"")).await;
    let paused = rows.unwrap().into_iter().filter(|row| row.pause.is_some());
    paused.map(|row| row.name).collect()
}

pub(crate) async fn a_paused_name_is_listed_and_calls_a_lease_back<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    client.hold("b").await;
    for name in ["c", "a"] {
        client.pause(name, None).await;
    }
    assert_eq!(paused(&mut client).await, [b"a", b"c"]);
    assert_eq!(client.row("a").await.kind, Some(Kind::Lock));
    let all = ["a", "b", "c"].map(named);
    let mut awaited = client.conn.queue_recall_due(&all).await.unwrap();
    awaited.sort();
    assert_eq!(awaited, [named("a"), named("c")]);
    client.resume("a").await;
    client.pause("c", Some(Duration::from_millis(1))).await;
    // (SQLite reports what is left of a pause a millisecond short: then it is still in force.)
    while !client.conn.queue_recall_due(&all).await.unwrap().is_empty() {}
    assert!(paused(&mut client).await.is_empty());
    assert!(matches!(
        client.take("c").await,
        TakeOutcome::Granted { .. }
    ));
}
