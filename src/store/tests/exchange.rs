//! Releases and acquires that go together.

use super::*;

fn freed_by(held: &Held) -> ReleaseParams {
    ReleaseParams {
        name: held.params.name.clone(),
        grant_id: held.params.grant_id,
        fence: held.fence,
        was_queued: false,
    }
}

pub(super) fn take(name: &str) -> TakeParams {
    TakeParams {
        name: named(name),
        grant_id: Uuid::new_v4(),
        ttl: TTL,
        holder: format!("taker of {name}").into(),
        session: None,
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
    assert_eq!(done, [FreeOutcome::Released]);
    let old = client.hold("t1").await;
    client.release(old.params.grant_id, "t1", old.fence).await;
    client.hold("t2").await;
    let takes = ["t0", "t1", "t2", "t3"].map(take);

    let exchanged = client.conn.lease_exchange(&releases, &takes).await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(
        freed,
        [
            FreeOutcome::Released,
            FreeOutcome::Passed(vec![next.params.grant_id]),
            FreeOutcome::Superseded,
            FreeOutcome::WasFree,
            FreeOutcome::Expired,
        ]
    );
    for (params, taken) in takes[..2].iter().zip(&taken) {
        let TakeOutcome::Granted { fence } = *taken else {
            panic!("{} is free: {taken:?}", params.name);
        };
        let row = client.row(params.name.as_str()).await;
        assert!(row.is_of(params.grant_id) && row.is_live(), "{row:?}");
        assert_eq!(
            (row.fence, &row.holder),
            (fence, &Some(params.holder.to_string()))
        );
    }
    assert!(client.row("t1").await.fence > old.fence);
    assert!(
        matches!(&taken[2], TakeOutcome::Busy(Some(row)) if row.is_live()),
        "{taken:?}"
    );
    assert!(
        matches!(&taken[3], TakeOutcome::Busy(Some(row)) if row.is_of(waits.params.grant_id)),
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
    assert_eq!(freed, [FreeOutcome::WasFree]);
    let is_found = match &taken[0] {
        TakeOutcome::Granted { .. } => true,
        TakeOutcome::Busy(row) => row.as_ref().is_some_and(|row| row.is_of(takes[0].grant_id)),
        TakeOutcome::Quarantined { .. } => false,
    };
    assert!(is_found, "{taken:?}");
}

/// A name that has a row, and is free.
async fn freed<P: Place>(client: &mut Client<P>, name: &str) {
    let held = client.hold(name).await;
    let freed = client.release(held.params.grant_id, name, held.fence).await;
    assert_eq!(freed, FreeOutcome::Released);
}

fn is_granted(taken: &TakeOutcome) -> bool {
    matches!(taken, TakeOutcome::Granted { .. })
}

/// Whatever their names, holders, TTLs and sessions are.
pub(crate) async fn an_exchange_keeps_its_asks_apart<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let names = ["plain", "q'uo\\te", "é?;--", "x'00'"];
    let hours = [3, 1, 2, 4];
    for differ in [false, true] {
        let mut releases = Vec::new();
        for name in names {
            releases.push(freed_by(&client.hold(name).await));
            freed(&mut client, &format!("{name} 2")).await;
        }
        let mut takes = names.map(|name| take(&format!("{name} 2")));
        for (params, hours) in takes.iter_mut().zip(hours) {
            params.holder = "it's ?".into();
            params.session = Some(client.session);
            if differ {
                params.ttl = Duration::from_hours(hours);
                params.session = None;
                params.holder = format!("{hours} o'clock").into();
            }
        }
        let exchanged = client.conn.lease_exchange(&releases, &takes).await;
        let (freed, taken) = exchanged.unwrap();
        assert_eq!(freed, vec![FreeOutcome::Released; names.len()]);
        for (params, taken) in takes.iter().zip(&taken) {
            let row = client.row(params.name.as_str()).await;
            let TakeOutcome::Granted { fence } = *taken else {
                panic!("{}: {taken:?}", params.name);
            };
            assert!(row.is_of(params.grant_id), "{row:?}");
            assert_eq!(row.fence, fence);
            assert_eq!(row.holder.as_deref(), Some(&*params.holder));
            assert_eq!(row.session, params.session);
            let left = row.expires_at.unwrap() - row.acquired_at.unwrap();
            if differ {
                let off = params
                    .ttl
                    .abs_diff(Duration::from_micros(left.unsigned_abs()));
                assert!(off < Duration::from_secs(1), "{row:?}");
            }
        }
        for (name, params) in names.iter().zip(&takes) {
            assert_eq!(client.row(name).await.grant_id, None);
            let fence = client.row(params.name.as_str()).await.fence;
            let freed = client
                .release(params.grant_id, params.name.as_str(), fence)
                .await;
            assert_eq!(freed, FreeOutcome::Released);
        }
    }
}

/// One name with waiters, or with an expired lease, is what keeps the releases and takes from being granted all at
/// once.
pub(crate) async fn an_exchange_leaves_waiters_alone<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    client.hold("orphaned").await;
    let turn = client.wait("orphaned").await;
    let expired = freed_by(&client.hold("expired").await);
    client.expire_grants().await;
    for name in ["x", "y"] {
        freed(&mut client, name).await;
    }
    let mut releases = vec![freed_by(&client.hold("a").await)];
    releases.push(freed_by(&client.hold("b").await));
    let next = client.wait("b").await;
    let mut takes = ["orphaned", "x"].map(take);
    for params in &mut takes {
        params.holder = "taker".into();
    }

    let exchanged = client.conn.lease_exchange(&releases, &takes).await;
    let (freed, taken) = exchanged.unwrap();
    let passed = FreeOutcome::Passed(vec![next.params.grant_id]);
    assert_eq!(freed, [FreeOutcome::Released, passed]);
    let is_passed_on =
        matches!(&taken[0], TakeOutcome::Busy(Some(row)) if row.is_of(turn.params.grant_id));
    assert!(is_passed_on && is_granted(&taken[1]), "{taken:?}");
    client.check().await;

    let mut late = vec![freed_by(&client.hold("c").await)];
    late.push(expired.clone());
    let exchanged = client.conn.lease_exchange(&late, &[take("y")]).await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(freed, [FreeOutcome::Released, FreeOutcome::Expired]);
    assert!(taken.iter().all(is_granted), "{taken:?}");
    assert!(client.row("expired").await.is_of(expired.grant_id));
}

/// A locked row is told of while the transaction goes on, and is exchanged when that is over. (SQLite: the whole file
/// is locked.)
pub(crate) async fn an_exchange_waits_for_no_transaction<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut other = Client::new(place).await;
    let releases = [freed_by(&client.hold("a").await)];
    freed(&mut client, "b").await;
    let takes = [take("b")];
    other.run(P::LOCK).await;
    for _ in 0..3 {
        match client.conn.lease_exchange(&releases, &takes).await {
            Err(fault) if P::LOCKS_ALL => assert_eq!(fault.kind, FaultKind::LockTimeout),
            Err(fault) => panic!("{fault:?}"),
            Ok((freed, taken)) => {
                assert_eq!(freed, [FreeOutcome::Locked]);
                assert!(matches!(taken[..], [TakeOutcome::Busy(None)]), "{taken:?}");
            }
        }
    }
    other.run("ROLLBACK").await;
    let exchanged = client.conn.lease_exchange(&releases, &takes).await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(freed, [FreeOutcome::Released]);
    assert!(taken.iter().all(is_granted), "{taken:?}");
    // Nothing is left open: another connection sees it.
    assert_eq!(other.row("a").await.grant_id, None);
    assert!(other.row("b").await.is_of(takes[0].grant_id));
}

/// No fence comes after the last one, so the take fails.
pub(crate) async fn an_exchange_that_fails_leaves_nothing_open<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut other = Client::new(place).await;
    let releases = [freed_by(&client.hold("a").await)];
    freed(&mut client, "b").await;
    let last = "UPDATE rowlock_lock SET fence = 4611686018427387903 WHERE grant_id IS NULL";
    client.run(last).await;
    freed(&mut client, "c").await;
    let takes = ["b", "c"].map(take);
    let failed = client.conn.lease_exchange(&releases, &takes).await;
    failed.unwrap_err();

    // No row is locked any more.
    other.hold("c").await;
    let exchanged = client
        .conn
        .lease_exchange(&releases, &[take("d"), take("e")])
        .await;
    let (freed, taken) = exchanged.unwrap();
    assert!(
        matches!(freed[..], [FreeOutcome::Released | FreeOutcome::WasFree]),
        "{freed:?}"
    );
    assert!(taken.iter().all(is_granted), "{taken:?}");
    for (name, is_held) in [("a", false), ("b", false), ("d", true)] {
        assert_eq!(other.row(name).await.is_live(), is_held, "{name}");
    }
}

/// A take that a lean statement leaves to others: of a lock that a session has left behind.
pub(crate) async fn an_exchange_takes_what_the_dead_left<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut dead = Client::new(place).await;
    let left = JoinParams {
        in_session: true,
        ..dead.ask("left")
    };
    let joined = dead.join(&left).await;
    assert!(matches!(joined, JoinOutcome::Granted { .. }), "{joined:?}");
    dead.expire().await;
    let held = freed_by(&client.hold("held").await);
    let takes = [take("left")];
    let exchanged = client.conn.lease_exchange(&[held], &takes).await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(freed, [FreeOutcome::Released]);
    for (params, taken) in takes.iter().zip(&taken) {
        assert!(
            matches!(taken, TakeOutcome::Granted { .. }),
            "{}: {taken:?}",
            params.name
        );
        assert!(
            client
                .row(params.name.as_str())
                .await
                .is_of(params.grant_id)
        );
    }
    client.check().await;
}

/// The release of a grant that was passed on, beside a take.
pub(crate) async fn an_exchange_passes_on_what_was_passed_on<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let first = client.hold("a").await;
    let (second, third) = (client.wait("a").await, client.wait("a").await);
    client
        .release(first.params.grant_id, "a", first.fence)
        .await;
    let confirmed = client.confirm(&second).await;
    let ConfirmOutcome::Held { fence, .. } = confirmed else {
        panic!("{confirmed:?}");
    };
    let release = ReleaseParams {
        name: named("a"),
        grant_id: second.params.grant_id,
        fence,
        was_queued: true,
    };
    let exchanged = client.conn.lease_exchange(&[release], &[take("b")]).await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(freed, [FreeOutcome::Passed(vec![third.params.grant_id])]);
    assert!(
        matches!(taken[..], [TakeOutcome::Granted { .. }]),
        "{taken:?}"
    );
    client.check().await;
}
