//! PostgreSQL: its isolation levels, its rights, and its HOT updates.

use std::cell::Cell;
use std::time::Duration;

use rowlock::{Begun, Engine, Error, Outcome, Rowlock, SchemaError, Scope, TransactionError};
use rowlock_test::{Db, as_user, begin_new, eventually, join, on_app, request, take, user_name};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_database_whose_default_is_serializable_works() {
    let db = Db::new(Engine::Postgres).await;
    let name = db.url.rsplit('/').next().unwrap();
    db.execute(&format!(
        "ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
    ))
    .await;
    let (one, two) = (db.rowlock().await, db.rowlock().await);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..40 {
        let rowlock = [one.clone(), two.clone()][number % 2].clone();
        tasks.spawn(async move {
            let held = rowlock.lock("hot").acquire().await.unwrap();
            held.release().await.unwrap();
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    db.remove().await;
}

#[tokio::test]
async fn the_rights_at_run_time_are_those_on_rows() {
    let db = Db::empty(Engine::Postgres).await;
    let user = user_name("u");
    db.execute(&format!(
        "CREATE ROLE {user} LOGIN PASSWORD 'pw'; REVOKE CREATE ON SCHEMA public FROM PUBLIC"
    ))
    .await;
    let url = as_user(&db.url, &user, "pw");

    let error = Rowlock::connect(&url).await.unwrap_err();
    assert!(
        matches!(error, Error::Schema(SchemaError::Denied { .. })),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("rowlock migrate --print postgres"),
        "{error}"
    );

    db.execute(&rowlock::migration_sql(Engine::Postgres, 0).unwrap())
        .await;
    db.execute(&format!(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON rowlock_lock, rowlock_database, rowlock_session, rowlock_schema_history TO {user}"
    ))
    .await;
    // Connecting as usual, with migrating on: there is nothing to create.
    let rowlock = Rowlock::connect(&url).await.unwrap();
    let held = take(&rowlock, "a", TTL).await;
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    held.pin(&mut tx).await.unwrap();
    let _ = rowlock.in_tx(&mut tx).lock("b").acquire().await.unwrap();
    tx.commit().await.unwrap();
    held.release().await.unwrap();
    assert!(rowlock.admin().list().await.unwrap().is_empty());
    drop(rowlock);
    db.execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}"))
        .await;
    db.remove().await;
}

#[tokio::test]
async fn the_table_is_made_for_updates_that_stay_on_their_page() {
    // How many do so depends on what else the server does: a transaction in another database keeps it
    // from pruning. What makes them possible does not.
    let db = Db::new(Engine::Postgres).await;
    drop(db.rowlock().await);
    // A grant without a session writes no partial index.
    let indexes = "SELECT count(*) FROM pg_index \
                   WHERE indrelid = 'rowlock_lock'::regclass AND indpred IS NULL";
    assert_eq!(db.number(indexes).await, 1, "the primary key, and no more");
    let half = "SELECT count(*) FROM pg_class WHERE oid = 'rowlock_lock'::regclass \
                AND 'fillfactor=50' = ANY (reloptions)";
    assert_eq!(db.number(half).await, 1);
    db.remove().await;
}

#[tokio::test]
async fn a_lease_that_is_granted_between_the_look_and_the_lock_is_not_robbed() {
    let db = Db::new(Engine::Postgres).await;
    let (one, two) = (db.rowlock().await, db.rowlock().await);
    drop(two.version("a").await.unwrap()); // the second client knows the name
    let held = take(&one, "a", TTL).await;
    db.execute("UPDATE rowlock_lock SET expires_at = acquired_at")
        .await; // free, as others see it
    // A clock on which a statement stops when it has seen the row, and has not locked it yet.
    db.execute(
        "CREATE SCHEMA slow; \
         CREATE FUNCTION slow.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS \
         'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN pg_catalog.clock_timestamp(); END'",
    )
    .await;
    let mut stop = db.begin().await;
    stop.execute("SELECT pg_advisory_xact_lock(1)")
        .await
        .unwrap();
    let mut tx = db.begin().await;
    tx.execute("SET LOCAL search_path = slow, pg_catalog, public")
        .await
        .unwrap();
    let grant = async {
        eventually("the statement has seen the row", async || {
            db.waiting().await == 1
        })
        .await;
        db.execute("UPDATE rowlock_lock SET expires_at = acquired_at + INTERVAL '1' HOUR")
            .await;
        stop.commit().await.unwrap();
    };
    let (locked, ()) = tokio::join!(tx.try_lock(&two, "a"), grant);
    // The transaction is open still, and the lease is its holder's. (The server tells of an error first, and then
    // unlocks the row.)
    let free = "SELECT fence FROM rowlock_lock FOR UPDATE NOWAIT";
    eventually("the row is unlocked", async || {
        db.try_execute(free).await.is_ok()
    })
    .await;
    held.release().await.unwrap();
    let error = locked.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    tx.release().await;
    db.remove().await;
}

/// The commit takes a moment. Until it is over, the next holder would not see the row.
#[tokio::test]
async fn a_kept_guard_is_released_after_the_commit() {
    let db = Db::new(Engine::Postgres).await;
    let (one, two) = (db.rowlock().await, db.rowlock().await);
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END'; \
                CREATE TABLE app (n BIGINT); \
                CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON app DEFERRABLE INITIALLY DEFERRED \
                FOR EACH ROW EXECUTE FUNCTION slow()";
    db.execute(slow).await;
    let pool = sqlx::PgPool::connect(&db.url).await.unwrap();
    let next = async |seen: i64| {
        let held = two.lock("a").acquire().await.unwrap();
        assert_eq!(db.number("SELECT COUNT(*) FROM app").await, seen);
        held.release().await.unwrap();
    };
    let (one, policy) = (&one, one.retry());
    let work = policy.run(&pool, |mut tx| async move {
        tx.keep(one.lock("a").acquire().await?);
        let insert = "INSERT INTO app VALUES (1)";
        sqlx::query(insert).execute(&mut *tx).await.map(drop)?;
        Ok::<_, Error>(())
    });
    let after = async {
        eventually("the first one has it", async || {
            two.inspect("a").await.unwrap().is_some()
        })
        .await;
        next(1).await;
    };
    let (done, ()) = tokio::join!(work, after);
    done.unwrap();

    // In the transaction that keeps an outcome too, and after a rollback.
    let idempotency = one.idempotency();
    let request = rowlock::Fingerprint::of("request");
    let work = idempotency.run_in_tx(
        &pool,
        Scope("scope").key("k"),
        request,
        |mut tx| async move {
            tx.keep(one.lock("a").acquire().await?);
            let insert = "INSERT INTO app VALUES (2)";
            sqlx::query(insert).execute(&mut *tx).await.map(drop)?;
            Ok::<_, Error>(rowlock::Outcome::empty())
        },
    );
    let after = async {
        eventually("the first one has it", async || {
            two.inspect("a").await.unwrap().is_some()
        })
        .await;
        next(2).await;
    };
    let (done, ()) = tokio::join!(work, after);
    let _ = done.unwrap();
    let once = policy.clone().attempts(1);
    let failed = once.run(&pool, |mut tx| async move {
        tx.keep(one.lock("a").acquire().await?);
        Err::<(), _>(Error::Conflict {
            what: "the test".into(),
        })
    });
    failed.await.unwrap_err();
    next(2).await;
    db.remove().await;
}

/// Each of them keeps the looks for some milliseconds. The name after them has its turn all the same.
#[tokio::test]
async fn names_that_transactions_keep_locked_do_not_keep_back_others() {
    const PINNED: usize = 10;
    let db = Db::new(Engine::Postgres).await;
    let (one, two) = (db.rowlock().await, db.rowlock().await);
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for number in 0..PINNED {
        let name = format!("a{number}");
        let lock = one.lock(&name).ttl(Duration::from_secs(1));
        held.push(lock.acquire().await.unwrap());
        waiting.push(join(&two, &name, "waits").await);
    }
    let last = take(&one, "z", TTL).await;
    let next = join(&two, "z", "next").await;
    let mut tx = db.begin().await;
    for pinned in &held {
        tx.pin(pinned).await.unwrap();
    }
    for pinned in &held {
        pinned.lost().await; // it runs out, and the transaction keeps its row
    }
    db.execute("UPDATE rowlock_lock SET expires_at = acquired_at WHERE name = 'z'")
        .await;
    assert!(next.await.unwrap().unwrap().fence() > last.fence());
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    tx.commit().await.unwrap();
    for waiting in waiting {
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
    db.remove().await;
}

#[tokio::test]
async fn a_wait_in_a_transaction_leaves_it_no_savepoint_and_its_own_timeout() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = db.rowlock().await;
    let pool = sqlx::PgPool::connect(&db.url).await.unwrap();
    let mut first = pool.begin().await.unwrap();
    let _ = rowlock.in_tx(&mut first).lock("a").acquire().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let own = sqlx::raw_sql("SET LOCAL statement_timeout = '59s'");
    own.execute(&mut *tx).await.unwrap();
    let locks = async {
        let lock = rowlock.in_tx(&mut tx).lock("a").wait(TTL);
        let _ = lock.acquire().await.unwrap();
    };
    let ends = async {
        eventually("it waits for the row", async || db.waiting().await > 0).await;
        first.commit().await.unwrap();
    };
    tokio::join!(locks, ends);
    let timeout = sqlx::query_scalar("SHOW statement_timeout");
    let timeout: String = timeout.fetch_one(&mut *tx).await.unwrap();
    assert_eq!(timeout, "59s");
    let savepoint = sqlx::raw_sql("RELEASE SAVEPOINT rowlock_wait");
    let error = savepoint.execute(&mut *tx).await.unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
    drop(tx);
    db.remove().await;
}

/// Otherwise others would be granted the name meanwhile, and the transaction would fail.
#[tokio::test]
async fn a_transaction_waits_for_the_clock_with_the_row_locked() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = db.rowlock().await;
    let pool = sqlx::PgPool::connect(&db.url).await.unwrap();
    for names in [&["a"][..], &["a", "b"]] {
        for name in names {
            take(&rowlock, name, TTL).await.release().await.unwrap();
        }
        let mut was_seen = false;
        while !was_seen {
            let mut tx = pool.begin().await.unwrap();
            let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            db.execute(
                "UPDATE rowlock_lock
                 SET fence = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 39000",
            )
            .await;
            let is_done = Cell::new(false);
            let taking = async {
                let locks = rowlock.in_tx(&mut tx).lock_all(names.iter().copied());
                let _ = locks.acquire().await.unwrap();
                is_done.set(true);
            };
            let sleeps = format!(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'"
            );
            let unlocked = "SELECT COUNT(*) FROM (
                SELECT FROM rowlock_lock WHERE name = 'a' FOR UPDATE SKIP LOCKED) l";
            let looking = async {
                while !is_done.get() {
                    if db.number(&sleeps).await == 1 {
                        assert_eq!(db.number(unlocked).await, 0, "{names:?}");
                        return true;
                    }
                }
                false
            };
            was_seen = tokio::join!(taking, looking).1;
            tx.rollback().await.unwrap();
        }
    }
    drop(rowlock);
    pool.close().await;
    db.remove().await;
}

/// The work of an attempt goes to the schema of a tenant, which has tables of rowlock, too.
#[tokio::test]
async fn an_outcome_is_kept_where_its_key_was_claimed_or_not_at_all() {
    let db = Db::new(Engine::Postgres).await;
    db.execute("CREATE SCHEMA tenant; CREATE TABLE effect (n int)")
        .await;
    let tenant = format!("{}?options=-csearch_path%3Dtenant", db.url);
    drop(Rowlock::connect(&tenant).await.unwrap()); // the tables
    let rowlock = db.rowlock().await;
    let run = async |path: &'static str, key: &str| {
        on_app!(&db.app, pool => {
            rowlock.idempotency().run_in_tx(pool, Scope("scope").key(key), &request(), |mut tx| async move {
                for sql in [path, "INSERT INTO public.effect VALUES (1)"] {
                    sqlx::raw_sql(sql).execute(&mut *tx).await?;
                }
                Outcome::json(&"done")
            }).await
        })
    };
    // A claim of a new key, and of one that was given back.
    begin_new(&rowlock.idempotency(), "again")
        .await
        .release()
        .await
        .unwrap();
    for key in ["new", "again"] {
        let refused = run("SET LOCAL search_path = tenant, public", key).await;
        assert!(
            matches!(
                refused,
                Err(Error::Transaction(TransactionError::WrongDatabase { .. }))
            ),
            "{key}: {refused:?}"
        );
        let effects = "SELECT count(*) FROM effect";
        assert_eq!(db.number(effects).await, 0, "{key}");
        // The work sets the path back, or leaves the tables of rowlock where they were.
        let path = "SET LOCAL search_path = tenant, public; SET LOCAL search_path = public, tenant";
        for is_new in [true, false] {
            let begun = run(path, key).await.unwrap();
            assert_eq!(matches!(begun, Begun::New(_)), is_new, "{key}: {begun:?}");
        }
        assert_eq!(db.number(effects).await, 1, "{key}");
        db.execute("DELETE FROM effect").await;
    }
    db.remove().await;
}
