//! Releases and acquires that go together.

use super::*;

fn freed_by(held: &Held) -> ReleaseAsk {
    ReleaseAsk {
        name: held.ask.name.clone(),
        grant_id: held.ask.grant_id,
        fence: held.fence,
        was_queued: false,
    }
}

fn take(name: &str) -> TakeAsk {
    TakeAsk {
        name: named(name),
        grant_id: Uuid::new_v4(),
        ttl: TTL,
        holder: format!("taker of {name}").into(),
        session: None,
        barging: false,
    }
}

/// Each name gets what it would get alone, whatever the others get.
pub(crate) async fn an_exchange_is_releases_and_takes<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let expired = freed_by(&client.hold("f4").await);
    client.hold("t3").await;
    let waits = client.wait("t3").await;
    client.expire_grants().await;
    let mut releases = Vec::new();
    for name in ["f0", "f1", "f2", "f3"] {
        releases.push(freed_by(&client.hold(name).await));
    }
    releases.push(expired);
    let next = client.wait("f1").await;
    releases[2].grant_id = Uuid::new_v4();
    let done = client.conn.lease_release(&releases[3..4]).await.unwrap();
    assert_eq!(done, [Freed::Released]);
    let old = client.hold("t1").await;
    client.release(old.ask.grant_id, "t1", old.fence).await;
    client.hold("t2").await;
    let takes = ["t0", "t1", "t2", "t3"].map(take);

    let exchanged = client.conn.lease_exchange(&releases, &takes).await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(
        freed,
        [
            Freed::Released,
            Freed::Passed(vec![next.ask.grant_id]),
            Freed::Superseded,
            Freed::WasFree,
            Freed::Expired,
        ]
    );
    for (ask, taken) in takes[..2].iter().zip(&taken) {
        let Taken::Granted { fence } = *taken else {
            panic!("{} is free: {taken:?}", ask.name);
        };
        let row = client.row(ask.name.as_str()).await;
        assert!(row.is_of(ask.grant_id) && row.is_live(), "{row:?}");
        assert_eq!(
            (row.fence, &row.holder),
            (fence, &Some(ask.holder.to_string()))
        );
    }
    assert!(client.row("t1").await.fence > old.fence);
    assert!(
        matches!(&taken[2], Taken::Busy(Some(row)) if row.is_live()),
        "{taken:?}"
    );
    assert!(
        matches!(&taken[3], Taken::Busy(Some(row)) if row.is_of(waits.ask.grant_id)),
        "its turn has come: {taken:?}"
    );
    assert_eq!(client.row("f0").await.grant_id, None);
    client.check().await;

    // A second sending finds what the first has done.
    let exchanged = client
        .conn
        .lease_exchange(&releases[..1], &takes[..1])
        .await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(freed, [Freed::WasFree]);
    let is_found = match &taken[0] {
        Taken::Granted { .. } => true,
        Taken::Busy(row) => row.as_ref().is_some_and(|row| row.is_of(takes[0].grant_id)),
    };
    assert!(is_found, "{taken:?}");
}
