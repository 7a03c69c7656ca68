//! How many connections a client has, counted by the server.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rowlock::{Builder, Engine, Held, NameFilter, Rowlock};
use rowlock_test::{Db, User, begin_new, eventually, loss, outcome, patience, queue_of, take};
use tokio::task::{JoinHandle, JoinSet};

/// How many connections a client may have. (With 7, slow operations keep theirs.)
const LIMITS: [u32; 4] = [7, 4, 3, 2];

/// Between two counts. (The server needs a moment to end a session.)
const PAUSE: Duration = Duration::from_millis(200);

/// How many counts are made under each load.
const COUNTS: usize = 20;

/// How many leases are held beside a list.
const LEASES: usize = 10_000;

/// Two renewals of each come in this time.
const TTL: Duration = Duration::from_secs(24);

async fn connected(user: &User, builder: Builder) -> Rowlock {
    builder
        .clean_every(Duration::from_secs(1))
        .connect(&user.url)
        .await
        .unwrap()
}

/// Counts so often: no more than so many sessions stay. Returns the most that did.
async fn counted(db: &Db, user: &User, most: usize, counts: usize) -> usize {
    let (mut before, mut seen) = (HashSet::new(), 0);
    for _ in 0..counts {
        let now: HashSet<i64> = user.sessions(db).await.into_iter().collect();
        let stayed: HashSet<i64> = now.intersection(&before).copied().collect();
        // The server may be late with the end of a session that the client has closed.
        if stayed.len() > most {
            eventually("no more connections than are allowed", async || {
                let left = user.sessions(db).await.into_iter();
                left.filter(|session| stayed.contains(session)).count() <= most
            })
            .await;
        }
        seen = seen.max(stayed.len().min(most));
        before = now;
        tokio::time::sleep(PAUSE).await;
    }
    seen
}

/// All that a client has connections for, many at once.
async fn all_at_once(rowlock: &Rowlock, other: &Rowlock, db: &Db, round: &str) {
    let mut tasks = JoinSet::new();
    for n in 0..64 {
        let rowlock = rowlock.clone();
        tasks.spawn(async move {
            for round in 0..10 {
                let name = format!("n{}", (n * 10 + round) % 200);
                let held = rowlock.lock(&name).acquire().await.unwrap();
                let _ = loss(held.release().await);
            }
        });
    }
    for n in 0..8 {
        let (rowlock, other) = (rowlock.clone(), other.clone());
        let name = format!("queue{n} {round}");
        tasks.spawn(async move {
            // It waits in the database.
            let held = take(&other, &name, Duration::from_secs(30)).await;
            let waits = tokio::spawn({
                let (rowlock, name) = (rowlock.clone(), name.clone());
                async move { rowlock.lock(&name).acquire().await.unwrap() }
            });
            eventually("it waits", async || {
                !queue_of(&other, &name).await.is_empty()
            })
            .await;
            let _ = loss(held.release().await);
            let held = waits.await.unwrap();
            let admin = rowlock.admin();
            admin.force_release(name.as_str()).await.unwrap();
            drop(held);
            admin.list().await.unwrap();
            admin.names(&NameFilter::new()).await.unwrap();
            admin.queue(name.as_str()).await.unwrap();
            admin.runs().await.unwrap();
            admin.clean(100).await.unwrap();
            rowlock.inspect("n0").await.unwrap();
            let idempotency = rowlock.idempotency();
            let begun = begin_new(&idempotency, &name).await;
            begun.complete(&outcome("done")).await.unwrap();
            let session = rowlock.lock(format!("session{n}")).in_session();
            let _ = loss(session.acquire().await.unwrap().release().await);
        });
    }
    for n in 0..4 {
        let permit = rowlock.semaphore(format!("permits{n}"), 2);
        let permit = permit.acquire().await.unwrap();
        let mut tx = db.begin().await;
        tx.pin(&permit).await.unwrap();
        tx.commit().await.unwrap();
    }
    tasks.join_all().await;
}

/// Under any load a client has at most the connections that it may have, and one a minute after it.
pub(crate) async fn under_load(engine: Engine) {
    let db = Db::new(engine).await;
    let (user, other) = (User::new(&db, "").await, db.rowlock().await);
    for most in LIMITS {
        let rowlock = connected(&user, Rowlock::builder().max_connections(most)).await;
        let is_over = AtomicBool::new(false);
        let load = async {
            let mut n = 0;
            while !is_over.load(Ordering::Relaxed) {
                all_at_once(&rowlock, &other, &db, &format!("{most} {n}")).await;
                n += 1;
            }
        };
        let counts = async {
            let seen = counted(&db, &user, most as usize, COUNTS).await;
            is_over.store(true, Ordering::Relaxed);
            seen
        };
        let ((), seen) = tokio::join!(load, counts);
        // The spare ones come and go.
        let spare = most.saturating_sub(3).max(1);
        let stay = (most - spare) as usize;
        assert!(seen >= stay, "{seen} connections were seen");
        assert_eq!(rowlock.shutdown(patience()).await, []);
        eventually("its sessions end", async || {
            user.sessions(&db).await.is_empty()
        })
        .await;
    }
    drop(other);
    user.remove(&db).await;
    db.remove().await;
}

/// A client that holds nothing has one connection. (A client that has waited has a session, which is renewed.)
pub(crate) async fn idle(engine: Engine) {
    let db = Db::new(engine).await;
    let user = User::new(&db, "").await;
    let rowlock = Rowlock::builder().clean_every(None);
    let rowlock = rowlock.connect(&user.url).await.unwrap();
    let mut tasks = JoinSet::new();
    for n in 0..64 {
        let rowlock = rowlock.clone();
        tasks.spawn(async move {
            let held = rowlock.lock(format!("n{n}")).acquire().await.unwrap();
            rowlock.inspect("n0").await.unwrap();
            let _ = loss(held.release().await);
        });
    }
    tasks.join_all().await;
    rowlock.admin().list().await.unwrap();
    eventually("the renewals have a connection", async || {
        user.sessions(&db).await.len() > 2
    })
    .await;
    eventually("an idle client has one connection", async || {
        user.sessions(&db).await.len() == 1
    })
    .await;
    let in_session = rowlock.lock("a").in_session().acquire().await.unwrap();
    let _ = loss(in_session.release().await);
    eventually("the session is renewed", async || {
        user.sessions(&db).await.len() == 2
    })
    .await;
    assert_eq!(rowlock.shutdown(patience()).await, []);
    user.remove(&db).await;
    db.remove().await;
}

/// One list after the other goes on with the connection that was used last: the others of a burst end. That one ends
/// some time later, so that a page which is always open does not stay with a server that is no longer the primary.
pub(crate) async fn kept(engine: Engine) {
    let db = Db::new(engine).await;
    let user = User::new(&db, "").await;
    let rowlock = Rowlock::builder().max_connections(7).clean_every(None);
    let rowlock = rowlock.connect(&user.url).await.unwrap();
    let before = user.sessions(&db).await;
    // Who lists the runs waits for this transaction.
    let mut locked = db.begin().await;
    let lock_table = db.kind.lock_table.replace("rowlock_lock", "rowlock_run");
    locked.execute(&lock_table).await.unwrap();
    let lists = [(); 4].map(|()| {
        let rowlock = rowlock.clone();
        tokio::spawn(async move { rowlock.admin().runs().await.unwrap() })
    });
    eventually("each list has a connection", async || {
        user.sessions(&db).await.len() == before.len() + lists.len()
    })
    .await;
    let mut burst = user.sessions(&db).await;
    burst.retain(|session| !before.contains(session));
    if engine != Engine::Postgres {
        locked.execute("UNLOCK TABLES").await.unwrap();
    }
    locked.commit().await.unwrap();
    for list in lists {
        list.await.unwrap();
    }
    let began = Instant::now();
    let left = async || {
        tokio::time::sleep(PAUSE).await;
        rowlock.admin().list().await.unwrap();
        let now = user.sessions(&db).await;
        burst.iter().filter(|id| now.contains(id)).count()
    };
    eventually("the others end", async || left().await <= 1).await;
    let others = began.elapsed();
    eventually("the last one ends", async || left().await == 0).await;
    let last = began.elapsed();
    assert!(others < last / 2, "{others:?}, {last:?}");
    assert_eq!(rowlock.shutdown(patience()).await, []);
    user.remove(&db).await;
    db.remove().await;
}

/// With two connections: two lists hang, 10,000 leases are renewed, and waiters have their turns.
pub(crate) async fn beside_a_list(engine: Engine) {
    let db = Db::new(engine).await;
    let (user, other) = (User::new(&db, "").await, db.rowlock().await);
    // The server keeps a session whose statement was cut off until the statement ends: none is.
    let rowlock = Rowlock::builder().max_connections(2).clean_every(None);
    let rowlock = rowlock.operation_timeout(TTL * 3);
    let rowlock = rowlock.connect(&user.url).await.unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..100 {
        let rowlock = rowlock.clone();
        tasks.spawn(async move {
            let mut all = Vec::new();
            for n in 0..LEASES / 100 {
                let lock = rowlock.lock(format!("{task}/{n}")).ttl(TTL);
                all.push(lock.acquire().await.unwrap());
            }
            all
        });
    }
    let held: Vec<Held> = tasks.join_all().await.into_iter().flatten().collect();
    let (began, is_over) = (Instant::now(), AtomicBool::new(false));
    // Who lists the runs waits for this transaction.
    let mut locked = db.begin().await;
    let lock_table = db.kind.lock_table.replace("rowlock_lock", "rowlock_run");
    locked.execute(&lock_table).await.unwrap();
    let lists = [(); 2].map(|()| {
        let rowlock = rowlock.clone();
        tokio::spawn(async move { rowlock.admin().runs().await.unwrap() })
    });
    let turns = async {
        let mut turns = 0;
        while !is_over.load(Ordering::Relaxed) {
            let first = take(&other, "turn", Duration::from_secs(30)).await;
            let lock = rowlock.lock("turn");
            let second = lock.acquire();
            let release = async {
                eventually("it waits", async || {
                    !queue_of(&other, "turn").await.is_empty()
                })
                .await;
                let _ = loss(first.release().await);
            };
            let (second, ()) = tokio::join!(second, release);
            let _ = loss(second.unwrap().release().await);
            turns += 1;
        }
        turns
    };
    let counts = async {
        let mut seen = 0;
        // The time of the leases passes.
        while began.elapsed() < TTL * 3 / 2 {
            seen = seen.max(counted(&db, &user, 2, COUNTS).await);
        }
        is_over.store(true, Ordering::Relaxed);
        seen
    };
    let (turns, seen) = tokio::join!(turns, counts);
    assert!(turns > 0);
    assert_eq!(seen, 2);
    let is_waiting = |list: &JoinHandle<_>| !list.is_finished();
    assert!(
        lists.iter().all(is_waiting),
        "they wait for the transaction"
    );
    let lost = held.iter().filter(|held| !held.is_held()).count();
    assert_eq!(lost, 0, "of {LEASES} leases");
    if engine != Engine::Postgres {
        locked.execute("UNLOCK TABLES").await.unwrap();
    }
    locked.commit().await.unwrap();
    for list in lists {
        assert_eq!(list.await.unwrap().len(), 0);
    }
    drop(held);
    assert_eq!(rowlock.shutdown(patience()).await, []);
    drop(other);
    user.remove(&db).await;
    db.remove().await;
}
