//! Eight connections wait for three names at random.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::JoinSet;

use super::*;

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
    locked: AtomicU64,
    passed: AtomicU64,
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

/// Asks until no transaction has the row locked.
macro_rules! until_unlocked {
    ($seen:ident, $locked:path, $ask:expr) => {
        loop {
            match $ask.await.unwrap() {
                $locked => $seen.locked.fetch_add(1, Ordering::Relaxed),
                done => break done,
            };
        }
    };
}

async fn work(mut conn: MySqlConnection, seen: Arc<Seen>, worker: u64) {
    let mut session = conn.session().await;
    while !seen.stop.load(Ordering::Relaxed) {
        let at = fastrand::usize(0..NAMES.len());
        let ask = join(&name(NAMES[at]), session);
        let mut joined = until_unlocked!(seen, Joined::Locked, conn.queue_join(&ask));
        if fastrand::usize(0..4) == 0 {
            joined = until_unlocked!(seen, Joined::Locked, conn.queue_join(&ask));
        }
        let granted = match joined {
            Joined::Granted { fence } => {
                seen.granted(at, worker, fence, None);
                true
            }
            Joined::Queued { position, pass, .. } => {
                if pass {
                    conn.queue_pass(&super::pass(&ask.name, None))
                        .await
                        .unwrap();
                }
                match fastrand::usize(0..8) {
                    0 => {
                        let leave = super::pass(&ask.name, Some((ask.grant_id, Some(position))));
                        until_unlocked!(seen, Passed::Locked, conn.queue_pass(&leave));
                        false
                    }
                    // Its process dies. (The expiry is written by hand.)
                    1 => {
                        conn.end_of(session).await;
                        session = conn.session().await;
                        false
                    }
                    _ => wait(&mut conn, &seen, &ask, position, worker).await,
                }
            }
            other => panic!("{other:?}"),
        };
        if granted {
            release(&mut conn, &seen, &ask, worker).await;
        }
    }
}

/// Waits until it holds the name. `false`: its window was over before it looked.
async fn wait(
    conn: &mut MySqlConnection,
    seen: &Seen,
    ask: &JoinAsk,
    position: i64,
    worker: u64,
) -> bool {
    let at = NAMES.iter().position(|n| name(n) == ask.name).unwrap();
    let mut looked_at = Instant::now();
    loop {
        let stalled = looked_at.elapsed() > WINDOW / 2;
        looked_at = Instant::now();
        match conn.queue_look(&[look(ask, position)]).await.unwrap()[..] {
            [Looked::Granted] => {
                match until_unlocked!(seen, Confirmed::Locked, conn.queue_confirm(&confirm(ask))) {
                    Confirmed::Held { fence } => {
                        seen.granted(at, worker, fence, Some(position));
                        return true;
                    }
                    _ => assert!(
                        looked_at.elapsed() > WINDOW / 2,
                        "{position} was not passed on"
                    ),
                }
                return false;
            }
            [Looked::Waiting { pass: true, .. }] => {
                conn.queue_pass(&pass(&ask.name, None)).await.unwrap();
            }
            [Looked::Waiting { .. }] => conn.sql("DO SLEEP(0.001)").await,
            _ => {
                assert!(stalled, "{position} of {} is lost", NAMES[at]);
                return false;
            }
        }
    }
}

async fn release(conn: &mut MySqlConnection, seen: &Seen, ask: &JoinAsk, worker: u64) {
    let at = NAMES.iter().position(|n| name(n) == ask.name).unwrap();
    let row = conn.row(&ask.name).await;
    assert!(row.is_of(ask.grant_id) && row.is_live(), "{row:?}");
    match fastrand::usize(0..3) {
        // It dies: the grant expires. Another one passes it on.
        0 => {
            seen.ends(at, worker);
            conn.lapse(&ask.name).await;
        }
        1 => {
            seen.ends(at, worker);
            let end = pass(&ask.name, Some((ask.grant_id, None)));
            let passed = until_unlocked!(seen, Passed::Locked, conn.queue_pass(&end));
            assert!(matches!(passed, Passed::Done { was_live: true, .. }));
            seen.passed.fetch_add(1, Ordering::Relaxed);
        }
        _ => {
            seen.ends(at, worker);
            let release = [ReleaseAsk {
                name: ask.name.clone(),
                grant_id: ask.grant_id,
                fence: row.fence,
            }];
            loop {
                let freed = conn.lease_release(&release).await.unwrap();
                match freed[..] {
                    [Freed::Released] => break,
                    [Freed::Locked] => seen.locked.fetch_add(1, Ordering::Relaxed),
                    _ => panic!("{freed:?}"),
                };
            }
        }
    }
}

/// In one snapshot: as many rows as waiters, all after `passed` and before `next_position`.
async fn check(conn: &mut MySqlConnection) {
    let check = "SELECT CONVERT(l.name USING utf8mb4), l.waiters, COUNT(w.position), l.next_position, l.passed \
                 FROM rowlock_lock l LEFT JOIN rowlock_waiter w ON w.name = l.name \
                 GROUP BY l.name, l.waiters, l.next_position, l.passed \
                 HAVING l.waiters <> COUNT(w.position) \
                     OR MIN(w.position) <= l.passed OR MAX(w.position) >= l.next_position";
    let wrong: Vec<(String, i64, i64, i64, i64)> =
        sqlx::query_as(check).fetch_all(conn).await.unwrap();
    assert!(wrong.is_empty(), "{wrong:?}");
}

pub(super) async fn the_queue_keeps_its_promises_under_load(bench: &Bench) {
    let seen = Arc::new(Seen::default());
    let mut workers = JoinSet::new();
    for worker in 1..=8 {
        workers.spawn(work(bench.conn().await, Arc::clone(&seen), worker));
    }
    let mut conn = bench.conn().await;
    let (from, mut checks) = (Instant::now(), 0);
    while from.elapsed() < FOR {
        check(&mut conn).await;
        checks += 1;
        if let Some(ended) = workers.try_join_next() {
            ended.unwrap();
        }
    }
    seen.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    check(&mut conn).await;
    let mut grants = seen.grants.lock().unwrap().clone();
    grants.sort_unstable();
    for at in 0..NAMES.len() {
        let of_name = || grants.iter().filter(|grant| grant.0 == at);
        assert!(of_name().is_sorted_by(|a, b| a.1 < b.1), "a fence twice");
        let queued = of_name().filter_map(|grant| grant.2);
        assert!(queued.is_sorted_by(|a, b| a < b), "out of order");
    }
    let locked = seen.locked.load(Ordering::Relaxed);
    let passed = seen.passed.load(Ordering::Relaxed);
    let count = grants.len();
    println!("{count} grants, {passed} passed on by hand, {locked} times locked, {checks} checks");
    assert!(count > 50, "{count} grants only");
}
