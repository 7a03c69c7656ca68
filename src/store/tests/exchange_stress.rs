//! Clients that exchange the same names at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;

use super::exchange::take;
use super::*;

const STRESSED: usize = 8;
const CLIENTS: usize = 4;
/// The grants that each client gets at least.
const SHARE: u64 = 200;

/// The client that holds each name (0: none), and its last fence.
type Seen = [(AtomicU64, AtomicU64); STRESSED];

/// Connections give back all that they hold, and ask for other names. No name has two holders, and no client fails.
pub(crate) async fn clients_exchange_names_at_random<P: Place>(place: &P) {
    let seen: Arc<Seen> = Arc::default();
    let granted: Arc<[AtomicU64; CLIENTS]> = Arc::default();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let granted = Arc::clone(&granted);
        clients.spawn(swap(place.clone(), Arc::clone(&seen), number, granted));
    }
    clients.join_all().await;
}

/// Until each client had its share.
async fn swap<P: Place>(
    place: P,
    seen: Arc<Seen>,
    number: usize,
    granted: Arc<[AtomicU64; CLIENTS]>,
) {
    let mut client = Client::new(&place).await;
    let mut held = Vec::<(usize, ReleaseParams)>::new();
    let (own, number) = (&granted[number], number as u64 + 1);
    let is_short = |granted: &AtomicU64| granted.load(Ordering::Relaxed) < SHARE;
    while granted.iter().any(is_short) {
        let mut wanted: Vec<usize> = (0..STRESSED).collect();
        fastrand::shuffle(&mut wanted);
        wanted.retain(|at| held.iter().all(|(other, _)| other != at));
        wanted.truncate(3);
        let takes: Vec<TakeParams> = wanted.iter().map(|at| take(&format!("n{at}"))).collect();
        for (at, _) in &held {
            let holder = seen[*at].0.swap(0, Ordering::SeqCst);
            assert_eq!(holder, number, "n{at} had another holder");
        }
        let mut releases: Vec<ReleaseParams> = held.drain(..).map(|(_, params)| params).collect();
        fastrand::shuffle(&mut releases);
        let taken = exchanged(&mut client, &releases, &takes).await;
        for ((at, params), taken) in wanted.into_iter().zip(takes).zip(taken) {
            let fence = match taken {
                TakeOutcome::Granted { fence } => fence,
                // An earlier sending.
                TakeOutcome::Busy(Some(row)) if row.is_of(params.grant_id) => row.fence,
                TakeOutcome::Busy(_) | TakeOutcome::Quarantined { .. } => continue,
            };
            let before = seen[at].0.swap(number, Ordering::SeqCst);
            assert_eq!(before, 0, "{} has two holders", params.name);
            let last = seen[at].1.swap(fence.unsigned_abs(), Ordering::SeqCst);
            assert!(last < fence.unsigned_abs(), "{last} {fence}");
            own.fetch_add(1, Ordering::Relaxed);
            let (name, grant_id) = (params.name, params.grant_id);
            held.push((
                at,
                ReleaseParams {
                    name,
                    grant_id,
                    fence,
                    was_queued: false,
                },
            ));
        }
    }
}

/// Sends an exchange until all is released, as a lane does. (SQLite's file may be locked. On PostgreSQL a client that
/// makes rows may meet one that changes them, and be the victim of a deadlock.)
async fn exchanged<P: Place>(
    client: &mut Client<P>,
    releases: &[ReleaseParams],
    takes: &[TakeParams],
) -> Vec<TakeOutcome> {
    let done = loop {
        match client.conn.lease_exchange(releases, takes).await {
            Err(fault) if fault.kind.may_be_sent_again() => {}
            // Perhaps a part is done: the next sending finds it.
            Err(fault) if P::LOCKS_ALL && fault.kind == FaultKind::Disconnected => {}
            done => break done,
        }
    };
    let (mut freed, taken) = done.unwrap();
    while freed.contains(&FreeOutcome::Locked) {
        match client.conn.lease_release(releases).await {
            Err(fault) => assert_eq!(fault.kind, FaultKind::LockTimeout, "{fault:?}"),
            Ok(again) => freed = again,
        }
    }
    for freed in freed {
        let is_free = matches!(
            freed,
            FreeOutcome::Released | FreeOutcome::WasFree | FreeOutcome::Superseded
        );
        assert!(is_free, "{freed:?}");
    }
    taken
}
