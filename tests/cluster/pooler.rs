//! PgBouncer in transaction mode, with four connections to the server for everybody.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rowlock::{Advance, Begun, Engine, Error, Fingerprint, Outcome, Retry, Rowlock, Scope};
use rowlock_test::{
    Db, Own, busy, eventually, join, loss, patience, queue_is, release, take, turns,
};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Row};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(3);
/// The connections of the pooler to the server.
const SERVERS: usize = 4;

/// A database, and the way to it through a pooler that nobody has used yet.
struct Pooled {
    db: Db,
    bouncer: Own,
    url: String,
}

impl Pooled {
    async fn new() -> Self {
        let db = Db::new(Engine::Postgres).await;
        let bouncer = Own::start("pgbouncer", &[&db.url]);
        let url = bouncer.instead_of(&db.url);
        Self { db, bouncer, url }
    }

    async fn rowlock(&self) -> Rowlock {
        Rowlock::connect(&self.url).await.unwrap()
    }

    /// The application's own pool, by the same way. Its statements have no names, as there they must not.
    async fn pool(&self) -> PgPool {
        let options = PgConnectOptions::from_str(&self.url).unwrap();
        let options = options.extra_float_digits(None);
        let pool = PgPoolOptions::new().max_connections(8);
        pool.connect_with(options).await.unwrap()
    }

    /// Asks every connection that the pooler has to the server, while nobody else uses one.
    async fn ask_all(&self, sql: &'static str) -> Vec<String> {
        let pool = self.pool().await;
        let mut held = Vec::new();
        let mut processes = Vec::new();
        let mut said = Vec::new();
        for _ in 0..SERVERS {
            let mut tx = pool.begin().await.unwrap();
            let process = sqlx::raw_sql("SELECT pg_backend_pid()");
            let process: i32 = process.fetch_one(&mut *tx).await.unwrap().get(0);
            assert!(!processes.contains(&process));
            processes.push(process);
            let row = sqlx::raw_sql(sql).fetch_all(&mut *tx).await.unwrap();
            said.extend(row.first().map(|row| row.get::<String, _>(0)));
            held.push(tx);
        }
        for tx in held {
            tx.commit().await.unwrap();
        }
        pool.close().await;
        said
    }

    async fn remove(self) {
        drop(self.bouncer);
        self.db.remove().await;
    }
}

/// All of them meet a pooler without a single connection to the server, so that none finds a used one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_start_together_exclude_each_other() {
    let it = Pooled::new().await;
    drop(it.db.rowlock().await); // the tables
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let url = it.url.clone();
        clients.spawn(async move { Rowlock::connect(&url).await.unwrap() });
    }
    let clients = clients.join_all().await;
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..32 {
        let (rowlock, inside) = (clients[task % 8].clone(), Arc::clone(&inside));
        tasks.spawn(async move {
            let mut fences = Vec::new();
            for round in 0..6 {
                let hot = rowlock.lock("hot").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                fences.push(hot.fence());
                inside.fetch_sub(1, Ordering::SeqCst);
                hot.release().await.unwrap();
                // Others in one statement, and new ones.
                let own = take(&rowlock, &format!("{task} {round}"), TTL).await;
                own.release().await.unwrap();
            }
            fences
        });
    }
    let mut fences: Vec<i64> = tasks.join_all().await.into_iter().flatten().collect();
    let count = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), count, "a fence was granted twice");
    // A lease that no task has taken goes back in the background.
    let inspected = async || clients[0].inspect("hot").await.unwrap();
    eventually("it is free", async || inspected().await.is_none()).await;
    drop(clients);
    it.remove().await;
}

#[tokio::test]
async fn a_lease_is_busy_renewed_pinned_and_released() {
    let it = Pooled::new().await;
    let (one, two) = (it.rowlock().await, it.rowlock().await);
    let held = take(&one, "a", SHORT).await;
    let expiry = "SELECT (extract(epoch FROM expires_at) * 1000000)::bigint FROM rowlock_lock";
    let first = it.db.number(expiry).await;
    let busy = busy(two.lock("a").wait(Duration::ZERO).acquire().await);
    assert_eq!(busy.holder.unwrap().fence, held.fence());
    let later = 2 * i64::try_from(SHORT.as_micros()).unwrap();
    eventually("it is renewed", async || {
        it.db.number(expiry).await > first + later
    })
    .await;
    assert!(held.is_held());

    let pool = it.pool().await;
    for _ in 0..5 {
        let mut tx = pool.begin().await.unwrap();
        held.pin(&mut tx).await.unwrap();
        sqlx::raw_sql("SELECT 1").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }
    let freed = two.admin().force_release("a").await.unwrap().unwrap();
    assert_eq!(freed.fence, held.fence());
    let mut tx = pool.begin().await.unwrap();
    assert!(matches!(held.pin(&mut tx).await, Err(Error::Lost { .. })));
    tx.rollback().await.unwrap();
    let next = take(&two, "a", TTL).await;
    assert!(next.fence() > held.fence());
    next.release().await.unwrap();
    pool.close().await;
    drop((one, two));
    it.remove().await;
}

#[tokio::test]
async fn a_transaction_locks_and_a_version_advances() {
    let it = Pooled::new().await;
    let (rowlock, pool) = (it.rowlock().await, it.pool().await);
    let mut last = 0;
    for _ in 0..5 {
        let version = rowlock.version("a").await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let locked = rowlock.in_tx(&mut tx).lock("a").acquire().await.unwrap();
        assert!(locked.fence() > last);
        last = locked.fence();
        assert!(rowlock.lock("a").try_acquire().await.unwrap().is_none());
        let mut other = pool.begin().await.unwrap();
        let all = rowlock.in_tx(&mut other).lock_all(["a", "b"]);
        let all = all.wait(Duration::from_millis(50)).acquire().await;
        assert!(matches!(all, Err(Error::WaitTimeout { .. })), "{all:?}");
        other.rollback().await.unwrap();
        tx.commit().await.unwrap();

        let mut tx = pool.begin().await.unwrap();
        let advance = rowlock.in_tx(&mut tx).advance(&version).await.unwrap();
        assert!(
            matches!(advance, Advance::Conflict),
            "it was locked meanwhile"
        );
        tx.rollback().await.unwrap();
    }
    pool.close().await;
    drop(rowlock);
    it.remove().await;
}

#[tokio::test]
async fn records_are_begun_completed_and_replayed() {
    let it = Pooled::new().await;
    it.db.execute("CREATE TABLE payment (id text)").await;
    let (rowlock, pool) = (it.rowlock().await, it.pool().await);
    let idempotency = rowlock.idempotency();
    let request = Fingerprint::of("request");
    let outcome = Outcome::new("text/plain", "done").unwrap();
    for key in ["k1", "k2", "k3"] {
        let begun = idempotency
            .begin(Scope("scope").key(key), &request)
            .await
            .unwrap();
        let Begun::New(guard) = begun else {
            panic!("{begun:?}")
        };
        let again = idempotency
            .begin(Scope("scope").key(key), &request)
            .await
            .unwrap();
        assert!(matches!(again, Begun::InFlight(_)), "{again:?}");
        if key == "k1" {
            guard.complete(&outcome).await.unwrap();
        } else {
            let mut tx = pool.begin().await.unwrap();
            guard.complete_in(&mut tx, &outcome).await.unwrap();
            tx.commit().await.unwrap();
        }
        let again = idempotency
            .begin(Scope("scope").key(key), &request)
            .await
            .unwrap();
        let Begun::Replay(replay) = again else {
            panic!("{again:?}")
        };
        assert_eq!(replay.bytes(), b"done");
    }
    for _ in 0..3 {
        for key in ["t1", "t2"] {
            let paid = idempotency.run_in_tx(
                &pool,
                Scope("scope").key(key),
                &request,
                |mut tx| async move {
                    let pay = sqlx::raw_sql("INSERT INTO payment VALUES ('a')");
                    pay.execute(&mut *tx).await?;
                    Outcome::json(&"paid")
                },
            );
            assert!(matches!(
                paid.await.unwrap(),
                Begun::New(_) | Begun::Replay(_)
            ));
        }
    }
    assert_eq!(it.db.number("SELECT count(*) FROM payment").await, 2);
    pool.close().await;
    drop(rowlock);
    it.remove().await;
}

/// What a session says of itself, its prepared statements and its settings.
const TRACES: &str = "
SELECT concat_ws(' ', current_setting('default_transaction_isolation'),
                 (SELECT count(*) FROM pg_prepared_statements),
                 current_setting('idle_in_transaction_session_timeout'),
                 (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT IN
                    ('DateStyle', 'TimeZone', 'client_encoding', 'application_name',
                     'standard_conforming_strings', 'IntervalStyle', 'transaction_isolation',
                     'transaction_read_only', 'transaction_deferrable')))";

#[tokio::test]
async fn other_users_of_the_pool_find_no_trace_of_it() {
    let it = Pooled::new().await;
    let name = it.db.url.rsplit('/').next().unwrap();
    it.db
        .execute(&format!(
            "ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
        ))
        .await;
    let before = it.ask_all(TRACES).await;
    let (rowlock, pool) = (it.rowlock().await, it.pool().await);
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let (rowlock, pool) = (rowlock.clone(), pool.clone());
        tasks.spawn(async move {
            let held = take(&rowlock, &task.to_string(), TTL).await;
            let mut tx = pool.begin().await.unwrap();
            held.pin(&mut tx).await.unwrap();
            tx.commit().await.unwrap();
            let _ = loss(held.release().await);
        });
    }
    tasks.join_all().await;
    assert!(rowlock.admin().list().await.unwrap().is_empty());
    rowlock.flush().await;
    drop(rowlock);
    pool.close().await;
    let none = vec!["serializable 0 0 0".to_owned(); SERVERS];
    assert_eq!(before, none);
    assert_eq!(it.ask_all(TRACES).await, none);
    it.remove().await;
}

#[tokio::test]
async fn statements_that_others_left_behind_are_not_run() {
    let it = Pooled::new().await;
    drop(it.db.rowlock().await); // the tables
    // Other clients of sqlx give their statements the same names.
    it.ask_all(
        "PREPARE sqlx_s_1 AS SELECT 'another statement'; PREPARE sqlx_s_2 AS DELETE FROM rowlock_lock; \
         PREPARE sqlx_s_3 (bytea) AS DELETE FROM rowlock_lock; \
         PREPARE sqlx_s_4 (bytea, uuid) AS DELETE FROM rowlock_lock",
    )
    .await;
    for round in 0..6 {
        let rowlock = it.rowlock().await;
        let held = take(&rowlock, &round.to_string(), TTL).await;
        assert!(rowlock.inspect("0").await.unwrap().is_some());
        if round > 0 {
            let _ = loss(held.release().await);
        } else {
            std::mem::forget(held);
        }
    }
    it.remove().await;
}

/// The pooler gives a notification to whichever client has the server's session, so waiters look whose turn it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_granted_in_order_without_notifications() {
    let it = Pooled::new().await;
    let clients = [it.rowlock().await, it.rowlock().await, it.rowlock().await];
    let held = take(&clients[0], "a", TTL).await;
    let mut waiting = Vec::new();
    for number in 0..9 {
        let holder = number.to_string();
        waiting.push(join(&clients[number % 3], "a", &holder).await);
    }
    let gives_up = join(&clients[1], "a", "gives up").await;
    gives_up.abort();
    let all = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];
    queue_is(&clients[2], "a", &all).await;
    let listens = "SELECT channel FROM pg_listening_channels() AS channel";
    assert_eq!(it.ask_all(listens).await, [""; 0]);
    release(&held).await;
    assert_eq!(turns(waiting).await, [0, 1, 2, 3, 4, 5, 6, 7, 8]);

    let catalog = clients[0].rw_lock("catalog");
    let writer = catalog.write().await.unwrap();
    let other = clients[1].rw_lock("catalog");
    let reader = tokio::spawn(async move { other.read().await });
    eventually("a reader waits", async || {
        let queue = clients[2].admin().queue("catalog").await;
        !queue.unwrap().is_empty()
    })
    .await;
    release(&writer).await;
    assert!(reader.await.unwrap().unwrap().is_held());
    drop(clients);
    it.remove().await;
}

/// Twice as many transactions as the pooler has connections, each for a name that has no row yet, which rowlock's own
/// connections would have to make: while all of the pooler's are with transactions that wait for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_that_have_all_connections_do_not_wait_for_ever() {
    let at = Pooled::new().await;
    let rowlock = at.rowlock().await;
    let pool = at.pool().await;
    let all = Arc::new(tokio::sync::Barrier::new(SERVERS));
    let tries = Arc::new(AtomicU32::new(0));
    let mut orders = JoinSet::new();
    for number in 0..2 * SERVERS {
        let (rowlock, pool, all, tries) =
            (rowlock.clone(), pool.clone(), all.clone(), tries.clone());
        orders.spawn(async move {
            let first = AtomicU32::new(0);
            let policy = Retry::new();
            let run = policy.run(&pool, |mut tx| {
                let (rowlock, all, tries, first) = (&rowlock, &all, &tries, &first);
                async move {
                    tries.fetch_add(1, Ordering::Relaxed);
                    // The first of them go on together, when nobody can get another connection.
                    if first.fetch_add(1, Ordering::Relaxed) == 0 {
                        all.wait().await;
                    }
                    let name = format!("order-{number}");
                    rowlock.in_tx(&mut tx).lock(name).acquire().await
                }
            });
            run.await
        });
    }
    let started = Instant::now();
    let done = async {
        while let Some(order) = orders.join_next().await {
            assert!(order.unwrap().unwrap().fence() > 0);
        }
    };
    tokio::time::timeout(patience(), done)
        .await
        .expect("they do not wait for each other for ever");
    println!(
        "{:?}, {} tries",
        started.elapsed(),
        tries.load(Ordering::Relaxed)
    );
    pool.close().await;
    drop(rowlock);
    at.remove().await;
}
