//! SQLite: one writer at a time, in-memory databases, and files that are not ours.

use std::pin::pin;
use std::time::{Duration, Instant};

use rowlock::{Engine, Error, Rowlock, Scope};
use rowlock_test::{App, Db, eventually, take, takes_less_than};
use sqlx::sqlite::SqlitePoolOptions;

const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_transaction_that_locks_the_file_is_waited_for_as_long_as_an_operation_may_take() {
    let db = Db::new(Engine::Sqlite).await;
    let builder = Rowlock::builder().operation_timeout(Duration::from_millis(600));
    let rowlock = builder.connect(&db.url).await.unwrap();
    let row = db.lock_row("any").await;
    let started = Instant::now();
    let error = rowlock.lock("a").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("database is locked"), "{error}");
    assert!(started.elapsed() > Duration::from_millis(400), "it waits");
    row.release().await;
    let _held = take(&rowlock, "a", TTL).await;
    db.remove().await;
}

/// Otherwise the acquire would wait for the transaction, the transaction for the acquire, and all other writers for
/// both.
#[tokio::test]
async fn in_a_transaction_that_has_the_file_no_lease_is_asked_for() {
    let (db, other) = (Db::new(Engine::Sqlite).await, Db::new(Engine::Sqlite).await);
    let (rowlock, elsewhere) = (&db.rowlock().await, &other.rowlock().await);
    let pool = sqlx::SqlitePool::connect(&db.url).await.unwrap();
    let policy = rowlock.retry();
    let run = policy.run(&pool, |tx| async move {
        let held = elsewhere.lock("a").acquire().await?;
        assert!(held.is_held());
        drop(held);
        let asked = rowlock.rw_lock("catalog").read().await.map(drop);
        assert!(matches!(asked, Err(Error::RowLocked { .. })), "{asked:?}");
        let both = rowlock.multi_lock(["a", "b"]).acquire().await.map(drop);
        assert!(matches!(both, Err(Error::RowLocked { .. })), "{both:?}");
        drop(tx);
        rowlock.lock("a").acquire().await.map(drop)
    });
    let error = run.await.unwrap_err();
    assert!(error.to_string().contains("If it is yours"), "{error}");
    let idempotency = rowlock.idempotency();
    let request = rowlock::Fingerprint::of("request");
    let run = idempotency.run_in_tx(&pool, Scope("scope").key("k"), request, |_tx| async move {
        let permit = rowlock.semaphore("s", 1).try_acquire().await?;
        drop(permit);
        Ok::<_, Error>(rowlock::Outcome::empty())
    });
    let error = run.await.unwrap_err();
    assert!(matches!(error, Error::RowLocked { .. }), "{error}");
    // After it.
    assert!(rowlock.lock("a").acquire().await.unwrap().is_held());
    db.remove().await;
    other.remove().await;
}

#[tokio::test]
async fn an_acquire_outlasts_what_may_pass_but_not_its_wait() {
    let db = Db::new(Engine::Sqlite).await;
    let timeout = Duration::from_millis(300);
    let builder = Rowlock::builder().operation_timeout(timeout);
    let rowlock = builder.connect(&db.url).await.unwrap();
    let row = db.lock_row("any").await;
    // Without time left the first failure is the last one.
    let lock = rowlock.lock("a").wait(Duration::ZERO);
    let error = lock.acquire().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    let patient = rowlock.lock("a");
    let mut acquiring = pin!(patient.acquire());
    let ended = tokio::time::timeout(4 * timeout, &mut acquiring).await;
    assert!(ended.is_err(), "{ended:?}");
    row.release().await;
    acquiring.await.unwrap().release().await.unwrap();
    db.remove().await;
}

#[tokio::test]
async fn a_wait_ends_at_most_one_operation_late() {
    let db = Db::new(Engine::Sqlite).await;
    let timeout = Duration::from_secs(2);
    let builder = Rowlock::builder().operation_timeout(timeout);
    let rowlock = builder.connect(&db.url).await.unwrap();
    let row = db.lock_row("any").await;
    let lock = rowlock.lock("a").wait(timeout / 20);
    takes_less_than(2 * timeout, async || {
        let error = lock.acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    })
    .await;
    row.release().await;
    db.remove().await;
}

#[tokio::test]
async fn many_operations_on_a_locked_file_all_end_in_their_time() {
    let db = Db::new(Engine::Sqlite).await;
    let timeout = Duration::from_millis(600);
    let builder = Rowlock::builder().operation_timeout(timeout);
    let rowlock = builder.connect(&db.url).await.unwrap();
    let row = db.lock_row("any").await;
    // One after the other they would wait for twenty times as long as one.
    takes_less_than(20 * timeout, async || {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..20 {
            let lock = rowlock.lock(format!("n{number}"));
            tasks.spawn(async move { lock.try_acquire().await });
        }
        while let Some(outcome) = tasks.join_next().await {
            let outcome = outcome.unwrap();
            assert!(
                matches!(outcome, Err(Error::Unreachable { .. })),
                "{outcome:?}"
            );
        }
    })
    .await;
    row.release().await;
    rowlock.flush().await;
    assert_eq!(rowlock.admin().list().await.unwrap(), []);
    db.remove().await;
}

#[tokio::test]
async fn a_commit_that_fails_is_no_grant() {
    // In the rollback journal's mode a reader keeps a writer from committing, after the row was written.
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("used.db").display());
    let pool = SqlitePoolOptions::new()
        .connect(&format!("{url}?mode=rwc"))
        .await
        .unwrap();
    sqlx::raw_sql("CREATE TABLE mine (id INTEGER); INSERT INTO mine VALUES (1)")
        .execute(&pool)
        .await
        .unwrap();
    let builder = Rowlock::builder().operation_timeout(Duration::from_millis(600));
    let rowlock = builder.connect(&url).await.unwrap();
    let mut reader = pool.begin().await.unwrap();
    sqlx::query("SELECT * FROM mine")
        .fetch_all(&mut *reader)
        .await
        .unwrap();
    let outcome = rowlock.lock("a").try_acquire().await;
    assert!(
        matches!(outcome, Err(Error::Unreachable { .. })),
        "{outcome:?}"
    );
    reader.rollback().await.unwrap();
    let _held = take(&rowlock, "a", TTL).await;
}

#[tokio::test]
async fn a_new_file_is_in_wal_mode_and_a_file_in_use_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mode = async |file: &str| -> String {
        let url = format!("sqlite:{}", dir.path().join(file).display());
        let rowlock = Rowlock::connect(&url).await.unwrap();
        let _held = take(&rowlock, "a", TTL).await;
        let pool = SqlitePoolOptions::new().connect(&url).await.unwrap();
        sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    assert_eq!(mode("new.db").await, "wal");
    let url = format!("sqlite:{}?mode=rwc", dir.path().join("used.db").display());
    let pool = SqlitePoolOptions::new().connect(&url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE mine (id INTEGER)")
        .execute(&pool)
        .await
        .unwrap();
    assert_eq!(mode("used.db").await, "delete");
}

#[tokio::test]
async fn a_pool_in_memory_is_shared() {
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .connect("sqlite::memory:")
        .await
        .unwrap();
    let rowlock = Rowlock::from_pool(&pool).await.unwrap();
    let held = take(&rowlock, "a", TTL).await;
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM rowlock_lock")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(rows, 1);
    held.release().await.unwrap();
    // Its tables are locked whole: nobody can look at what a transaction is writing.
    for _ in 0..3 {
        let mut tx = pool.begin().await.unwrap();
        let _ = rowlock.in_tx(&mut tx).lock("b").acquire().await.unwrap();
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn connecting_waits_for_a_transaction_that_has_a_table_in_memory() {
    let pool = SqlitePoolOptions::new().max_connections(4);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    let first = Rowlock::from_pool(&pool).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let _ = first.in_tx(&mut tx).lock("a").acquire().await.unwrap();
    let mut second = pin!(Rowlock::from_pool(&pool));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut second).await;
    assert!(early.is_err(), "{early:?}");
    tx.commit().await.unwrap();
    let _held = take(&second.await.unwrap(), "b", TTL).await;
}

#[tokio::test]
async fn a_file_that_is_no_database_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notes.txt");
    std::fs::write(
        &file,
        "not a database, but long enough to be looked at as one ".repeat(20),
    )
    .unwrap();
    let error = Rowlock::connect(&format!("sqlite:{}", file.display()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("not a database"), "{error}");
}

#[tokio::test]
async fn a_url_for_reading_only_is_refused_and_a_pool_of_readers_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("locks.db").display());
    drop(Rowlock::connect(&url).await.unwrap());
    for mode in ["?mode=ro", "?immutable=true"] {
        let error = Rowlock::connect(&format!("{url}{mode}")).await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains("leave out `mode=ro`"), "{message}");
        let pool = SqlitePoolOptions::new();
        let pool = pool.connect(&format!("{url}{mode}")).await.unwrap();
        let rowlock = Rowlock::from_pool(&pool).await.unwrap();
        rowlock
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        pool.close().await;
    }
}

#[tokio::test]
async fn the_bundled_library_is_new_enough() {
    let db = Db::new(Engine::Sqlite).await;
    let rowlock = db.rowlock().await;
    let version = rowlock
        .admin()
        .server_version()
        .strip_prefix("SQLite ")
        .unwrap()
        .to_owned();
    let App::Sqlite(pool) = &db.app else {
        unreachable!("it is SQLite")
    };
    let told: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(pool)
        .await
        .unwrap();
    assert_eq!(version, told);
    db.remove().await;
}

#[tokio::test]
async fn a_deferred_transaction_gets_the_write_lock_when_it_asks_for_a_lock() {
    let db = Db::new(Engine::Sqlite).await;
    let rowlock = db.rowlock().await;
    let held = take(&rowlock, "a", TTL).await;
    let App::Sqlite(pool) = &db.app else {
        unreachable!("it is SQLite")
    };
    let mut tx = pool.begin().await.unwrap();
    held.pin(&mut tx).await.unwrap();
    assert_eq!(db.open_transactions().await, 1, "nobody else can write");
    tx.commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let _ = rowlock.in_tx(&mut tx).lock("b").acquire().await.unwrap();
    assert_eq!(db.open_transactions().await, 1);
    tx.commit().await.unwrap();
    db.remove().await;
}

#[tokio::test]
async fn a_deferred_transaction_that_has_read_what_is_out_of_date_is_told_so() {
    let db = Db::new(Engine::Sqlite).await;
    let rowlock = db.rowlock().await;
    let held = take(&rowlock, "a", TTL).await;
    let seen = rowlock.version("b").await.unwrap();
    let App::Sqlite(pool) = &db.app else {
        unreachable!("it is SQLite")
    };
    db.execute("CREATE TABLE app (n BIGINT)").await;
    for verb in ["pin", "lock", "advance"] {
        let mut tx = pool.begin().await.unwrap();
        sqlx::query("SELECT * FROM app")
            .fetch_all(&mut *tx)
            .await
            .unwrap();
        db.execute("INSERT INTO app VALUES (1)").await;
        let error = match verb {
            "pin" => held.pin(&mut tx).await.unwrap_err(),
            "lock" => rowlock
                .in_tx(&mut tx)
                .lock("b")
                .acquire()
                .await
                .unwrap_err(),
            _ => rowlock.in_tx(&mut tx).advance(&seen).await.unwrap_err(),
        };
        assert!(
            matches!(error, Error::Conflict { .. }) && error.is_retryable(),
            "{verb}: {error}"
        );
        tx.rollback().await.unwrap();
    }
    assert!(held.is_held());
    let mut tx = pool.begin().await.unwrap();
    held.pin(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    db.remove().await;
}

#[tokio::test]
async fn a_fence_is_never_told_twice_within_a_millisecond() {
    // A lease's fence is the end of its millisecond, a transaction's is in microseconds and may be rolled back.
    let db = Db::new(Engine::Sqlite).await;
    let rowlock = db.rowlock().await;
    let mut last = 0;
    for round in 0..300 {
        let fence = if round % 4 == 3 {
            let held = take(&rowlock, "a", TTL).await;
            let fence = held.fence();
            held.release().await.unwrap();
            fence
        } else {
            let mut tx = db.begin().await;
            let fence = tx.lock(&rowlock, "a").await.fence();
            if round % 4 == 2 {
                tx.commit().await.unwrap();
            } else {
                tx.release().await;
            }
            fence
        };
        assert!(fence > last, "round {round}: {fence} {last}");
        last = fence;
    }
    db.remove().await;
}

#[tokio::test]
async fn a_client_that_was_shut_down_leaves_all_in_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("locks.db");
    let rowlock = Rowlock::connect(&format!("sqlite:{}", file.display()))
        .await
        .unwrap();
    let held = take(&rowlock, "a", TTL).await;
    let waiting = rowlock.lock("a").wait(Duration::from_millis(1));
    assert!(waiting.acquire().await.is_err());
    held.release().await.unwrap();
    rowlock.admin().list().await.unwrap();
    assert_eq!(rowlock.shutdown(TTL).await, []);
    // sqlx closes a connection that is dropped on a thread of its own.
    eventually("only the file is left", async || {
        let left = std::fs::read_dir(&dir).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left == ["locks.db"]
    })
    .await;
}
