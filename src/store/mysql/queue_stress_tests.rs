//! Eight connections wait for three names at random. Some send an ask twice, some leave, some die while they wait or
//! hold.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rowlock_test::patience;
use tokio::task::JoinSet;

use super::*;
use crate::store::tests::{LONG_TTL, Waits};
use crate::store::verbs::release::FreeOutcome;

const NAMES: [&str; 3] = ["a", "b", "z"];
const FOR: Duration = Duration::from_secs(5);

/// What the workers have seen.
#[derive(Default)]
struct Seen {
    /// The worker that holds each name; 0: none.
    holders: [AtomicU64; 3],
    /// Name, fence, position (of a grant that was passed on).
    grants: Mutex<Vec<(usize, i64, Option<i64>)>>,
    stop: AtomicBool,
}

impl Seen {
    fn granted(&self, at: usize, worker: u64, fence: i64, position: Option<i64>) {
        let before = self.holders[at].swap(worker, Ordering::SeqCst);
        assert_eq!(before, 0, "{} has two holders", NAMES[at]);
        self.grants.lock().unwrap().push((at, fence, position));
    }

    fn ends(&self, at: usize, worker: u64) {
        let holder = self.holders[at].swap(0, Ordering::SeqCst);
        assert_eq!(holder, worker, "{} had another holder", NAMES[at]);
    }
}

async fn work(place: Database, seen: Arc<Seen>, worker: u64) {
    let mut client = Client::with_ttl(&place, LONG_TTL).await;
    while !seen.stop.load(Ordering::Relaxed) {
        let at = fastrand::usize(0..NAMES.len());
        let params = client.ask(NAMES[at]);
        let mut joined = client.try_join(&params).await;
        while joined.is_none() || fastrand::usize(0..4) == 0 {
            joined = client.try_join(&params).await;
        }
        match joined {
            Some(JoinOutcome::Granted { fence }) => {
                seen.granted(at, worker, fence, None);
                release(&mut client, &seen, (at, worker), &params, fence).await;
            }
            Some(JoinOutcome::Queued { position, .. }) => {
                let waits = Waits { params, position };
                match fastrand::usize(0..8) {
                    0 => {
                        let leave = waits.leaves();
                        while client.try_pass(NAMES[at], leave).await.is_none() {}
                    }
                    1 => {
                        client.expire().await;
                        client = Client::with_ttl(&place, LONG_TTL).await;
                    }
                    _ => {
                        if let Some(fence) = turn(&mut client, at, &waits).await {
                            seen.granted(at, worker, fence, Some(position));
                            release(&mut client, &seen, (at, worker), &waits.params, fence).await;
                        }
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Waits until it holds the name. `None`: its window was over, which began after the last look that found it waiting.
async fn turn(client: &mut Client<Database>, at: usize, waits: &Waits) -> Option<i64> {
    let mut waited = Instant::now();
    loop {
        let now = Instant::now();
        let looked = client.look(waits).await;
        if matches!(looked, LookOutcome::Waiting { .. }) {
            waited = now;
        }
        match looked {
            LookOutcome::Granted => match client.try_confirm(waits).await {
                Some(ConfirmOutcome::Held { fence, .. }) => return Some(fence),
                None => {}
                Some(ConfirmOutcome::Gone) => {
                    assert!(waited.elapsed() > WINDOW, "a turn was lost");
                    return None;
                }
            },
            LookOutcome::Waiting {
                is_orphaned: true, ..
            } => {
                client.try_pass(NAMES[at], PassWhy::Orphaned).await;
            }
            LookOutcome::Waiting { .. } => client.run("DO SLEEP(0.001)").await,
            LookOutcome::Gone => {
                assert!(waited.elapsed() > WINDOW, "a waiter was lost");
                return None;
            }
        }
    }
}

async fn release(
    client: &mut Client<Database>,
    seen: &Seen,
    (at, worker): (usize, u64),
    params: &JoinParams,
    fence: i64,
) {
    let row = client.row(NAMES[at]).await;
    assert!(row.is_of(params.grant_id) && row.is_live(), "{row:?}");
    seen.ends(at, worker);
    match fastrand::usize(0..3) {
        // It dies, and its grant expires.
        0 => {
            let expire = format!(
                "UPDATE rowlock_lock SET expires_at = {} WHERE name = {}",
                Database::AGO,
                hex(NAMES[at].as_bytes())
            );
            client.run(&expire).await;
        }
        1 => {
            let end = PassWhy::Ended(params.grant_id);
            let passed = loop {
                if let Some(passed) = client.try_pass(NAMES[at], end).await {
                    break passed;
                }
            };
            assert_eq!(passed.ended, EndedGrant::Live);
        }
        _ => loop {
            match client.try_release(params.grant_id, NAMES[at], fence).await {
                Some(FreeOutcome::Released | FreeOutcome::Passed(_)) => break,
                None => {}
                freed => panic!("{freed:?}"),
            }
        },
    }
}

pub(super) async fn waiters_that_die_and_ask_twice_keep_the_queue_in_order(place: &Database) {
    let seen = Arc::new(Seen::default());
    let mut workers = JoinSet::new();
    for worker in 1..=8 {
        workers.spawn(work(place.clone(), Arc::clone(&seen), worker));
    }
    let mut watcher = Client::new(place).await;
    let from = Instant::now();
    let is_enough = |of: Duration| of > patience() || seen.grants.lock().unwrap().len() > 50;
    while from.elapsed() < FOR || !is_enough(from.elapsed()) {
        watcher.check().await;
        if let Some(ended) = workers.try_join_next() {
            ended.unwrap();
        }
    }
    seen.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    watcher.check().await;
    let mut grants = seen.grants.lock().unwrap().clone();
    grants.sort_unstable();
    for at in 0..NAMES.len() {
        let of_name = || grants.iter().filter(|grant| grant.0 == at);
        assert!(of_name().is_sorted_by(|a, b| a.1 < b.1), "a fence twice");
        let queued = of_name().filter_map(|grant| grant.2);
        assert!(queued.is_sorted_by(|a, b| a < b), "out of order");
    }
    assert!(grants.len() > 50, "{} grants only", grants.len());
}
