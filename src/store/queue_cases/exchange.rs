//! Releases and acquires that go together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::task::JoinSet;

use super::*;
use crate::store::fault::Fault;

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

/// The longest time that a verb may wait.
const SOON: Duration = Duration::from_secs(1);

/// A name that has a row, and is free.
async fn freed<P: Place>(client: &mut Client<P>, name: &str) {
    let held = client.hold(name).await;
    let freed = client.release(held.ask.grant_id, name, held.fence).await;
    assert_eq!(freed, Freed::Released);
}

fn is_granted(taken: &Taken) -> bool {
    matches!(taken, Taken::Granted { .. })
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
        for (ask, hours) in takes.iter_mut().zip(hours) {
            ask.holder = "it's ?".into();
            ask.session = Some(client.session);
            if differ {
                ask.ttl = Duration::from_hours(hours);
                ask.session = None;
                ask.holder = format!("{hours} o'clock").into();
            }
        }
        let exchanged = client.conn.lease_exchange(&releases, &takes).await;
        let (freed, taken) = exchanged.unwrap();
        assert_eq!(freed, vec![Freed::Released; names.len()]);
        for (ask, taken) in takes.iter().zip(&taken) {
            let row = client.row(ask.name.as_str()).await;
            let Taken::Granted { fence } = *taken else {
                panic!("{}: {taken:?}", ask.name);
            };
            assert!(row.is_of(ask.grant_id), "{row:?}");
            assert_eq!(row.fence, fence);
            assert_eq!(row.holder.as_deref(), Some(&*ask.holder));
            assert_eq!(row.session, ask.session);
            let left = row.expires_at.unwrap() - row.acquired_at.unwrap();
            if differ {
                let off = ask.ttl.abs_diff(Duration::from_micros(left.unsigned_abs()));
                assert!(off < Duration::from_secs(1), "{row:?}");
            }
        }
        for (name, ask) in names.iter().zip(&takes) {
            assert_eq!(client.row(name).await.grant_id, None);
            let fence = client.row(ask.name.as_str()).await.fence;
            let freed = client.release(ask.grant_id, ask.name.as_str(), fence).await;
            assert_eq!(freed, Freed::Released);
        }
    }
}

/// One name with waiters, or with an expired lease, is what keeps the releases and takes from being granted all at once.
pub(crate) async fn an_exchange_leaves_waiters_alone<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    client.hold("stuck").await;
    let turn = client.wait("stuck").await;
    let expired = freed_by(&client.hold("expired").await);
    client.expire_grants().await;
    for name in ["x", "y"] {
        freed(&mut client, name).await;
    }
    let mut releases = vec![freed_by(&client.hold("a").await)];
    releases.push(freed_by(&client.hold("b").await));
    let next = client.wait("b").await;
    let mut takes = ["stuck", "x"].map(take);
    for ask in &mut takes {
        ask.holder = "taker".into();
    }

    let exchanged = client.conn.lease_exchange(&releases, &takes).await;
    let (freed, taken) = exchanged.unwrap();
    let passed = Freed::Passed(vec![next.ask.grant_id]);
    assert_eq!(freed, [Freed::Released, passed]);
    let is_passed_on = matches!(&taken[0], Taken::Busy(Some(row)) if row.is_of(turn.ask.grant_id));
    assert!(is_passed_on && is_granted(&taken[1]), "{taken:?}");
    client.check().await;

    let mut late = vec![freed_by(&client.hold("c").await)];
    late.push(expired.clone());
    let exchanged = client.conn.lease_exchange(&late, &[take("y")]).await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(freed, [Freed::Released, Freed::Expired]);
    assert!(taken.iter().all(is_granted), "{taken:?}");
    assert!(client.row("expired").await.is_of(expired.grant_id));
}

/// A locked row is told of at once, and is exchanged when the transaction is over. (SQLite: the whole file is locked.)
pub(crate) async fn an_exchange_waits_for_no_transaction<P: Place>(place: &P) {
    let mut client = Client::new(place).await;
    let mut other = Client::new(place).await;
    let releases = [freed_by(&client.hold("a").await)];
    freed(&mut client, "b").await;
    let takes = [take("b")];
    other.run(P::LOCK).await;
    for _ in 0..3 {
        let began = Instant::now();
        match client.conn.lease_exchange(&releases, &takes).await {
            Err(fault) => assert_eq!(fault.kind, FaultKind::LockTimeout, "{fault:?}"),
            Ok((freed, taken)) => {
                assert_eq!(freed, [Freed::Locked]);
                assert!(matches!(taken[..], [Taken::Busy(None)]), "{taken:?}");
            }
        }
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
    other.run("ROLLBACK").await;
    let exchanged = client.conn.lease_exchange(&releases, &takes).await;
    let (freed, taken) = exchanged.unwrap();
    assert_eq!(freed, [Freed::Released]);
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
        matches!(freed[..], [Freed::Released | Freed::WasFree]),
        "{freed:?}"
    );
    assert!(taken.iter().all(is_granted), "{taken:?}");
    for (name, is_held) in [("a", false), ("b", false), ("d", true)] {
        assert_eq!(other.row(name).await.is_live(), is_held, "{name}");
    }
}

const STRESSED: usize = 8;

/// The client that holds each name (0: none), and its last fence.
type Seen = [(AtomicU64, AtomicU64); STRESSED];

/// Connections give back all that they hold, and ask for other names. No name has two holders, and no client fails.
pub(crate) async fn clients_exchange_names_at_random<P: Place>(place: &P) {
    let seen: Arc<Seen> = Arc::default();
    let mut clients = JoinSet::new();
    for number in 1..=4 {
        clients.spawn(swap(place.clone(), Arc::clone(&seen), number));
    }
    let granted: Vec<u64> = clients.join_all().await;
    assert!(granted.iter().all(|granted| *granted > 20), "{granted:?}");
}

async fn swap<P: Place>(place: P, seen: Arc<Seen>, number: u64) -> u64 {
    let mut client = Client::new(&place).await;
    let (mut held, mut granted) = (Vec::<(usize, ReleaseAsk)>::new(), 0);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let mut wanted: Vec<usize> = (0..STRESSED).collect();
        fastrand::shuffle(&mut wanted);
        wanted.retain(|at| held.iter().all(|(other, _)| other != at));
        wanted.truncate(3);
        let takes: Vec<TakeAsk> = wanted.iter().map(|at| take(&format!("n{at}"))).collect();
        for (at, _) in &held {
            let holder = seen[*at].0.swap(0, Ordering::SeqCst);
            assert_eq!(holder, number, "n{at} had another holder");
        }
        let mut releases: Vec<ReleaseAsk> = held.drain(..).map(|(_, ask)| ask).collect();
        fastrand::shuffle(&mut releases);
        let taken = exchanged(&mut client, &releases, &takes).await;
        for ((at, ask), taken) in wanted.into_iter().zip(takes).zip(taken) {
            let fence = match taken {
                Taken::Granted { fence } => fence,
                // An earlier sending.
                Taken::Busy(Some(row)) if row.is_of(ask.grant_id) => row.fence,
                Taken::Busy(_) => continue,
            };
            let before = seen[at].0.swap(number, Ordering::SeqCst);
            assert_eq!(before, 0, "{} has two holders", ask.name);
            let last = seen[at].1.swap(fence.unsigned_abs(), Ordering::SeqCst);
            assert!(last < fence.unsigned_abs(), "{last} {fence}");
            granted += 1;
            let (name, grant_id) = (ask.name, ask.grant_id);
            held.push((
                at,
                ReleaseAsk {
                    name,
                    grant_id,
                    fence,
                    was_queued: false,
                },
            ));
        }
    }
    granted
}

/// Sends an exchange until all is released. (SQLite's file may be locked.)
async fn exchanged<P: Place>(
    client: &mut Client<P>,
    releases: &[ReleaseAsk],
    takes: &[TakeAsk],
) -> Vec<Taken> {
    let done = loop {
        match client.conn.lease_exchange(releases, takes).await {
            Err(Fault {
                kind: FaultKind::LockTimeout,
                ..
            }) => {}
            done => break done,
        }
    };
    let (mut freed, taken) = done.unwrap();
    while freed.contains(&Freed::Locked) {
        match client.conn.lease_release(releases).await {
            Err(fault) => assert_eq!(fault.kind, FaultKind::LockTimeout, "{fault:?}"),
            Ok(again) => freed = again,
        }
    }
    for freed in freed {
        let is_free = matches!(freed, Freed::Released | Freed::WasFree | Freed::Superseded);
        assert!(is_free, "{freed:?}");
    }
    taken
}
