//! MySQL and MariaDB: the plans that the locking derived tables rely on, rights, deadlocks.

use std::time::Duration;

use rowlock::{ConnectError, Engine, Error, Rowlock, SchemaError};
use rowlock_test::{Db, Own, as_user, eventually, patience, take, user_name};

const TTL: Duration = Duration::from_secs(30);
const DRIVERS: [Engine; 2] = [Engine::MariaDb, Engine::MySql];

#[tokio::test]
async fn new_names_made_by_many_at_once_end_without_an_error() {
    for engine in DRIVERS {
        let db = Db::new(engine).await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let rowlock = db.rowlock().await;
            for number in 0..50 {
                let rowlock = rowlock.clone();
                tasks.spawn(async move {
                    let held = rowlock
                        .lock(format!("new-{number}"))
                        .acquire()
                        .await
                        .unwrap();
                    held.release().await.unwrap();
                });
            }
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        assert_eq!(db.number("SELECT COUNT(*) FROM rowlock_lock").await, 50);
        db.remove().await;
    }
}

#[tokio::test]
async fn an_operation_locks_no_row_but_its_own() {
    for engine in DRIVERS {
        let db = Db::new(engine).await;
        let rowlock = db.rowlock().await;
        // A small table is where an optimizer would rather scan than look up.
        for name in ["a", "b", "c", "d"] {
            drop(take(&rowlock, name, TTL).await);
        }
        rowlock.flush().await;
        let row = db.lock_row("b").await;
        for name in ["a", "c", "d", "new"] {
            let held = take(&rowlock, name, TTL).await;
            held.release().await.unwrap();
        }
        row.release().await;
        db.remove().await;
    }
}

#[tokio::test]
async fn the_rights_at_run_time_are_those_on_rows() {
    for engine in DRIVERS {
        let db = Db::empty(engine).await;
        let name = db.url.rsplit('/').next().unwrap().to_owned();
        let user = user_name("u");
        db.execute(&format!(
            "CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'pw'"
        ))
        .await;
        db.execute(&format!("GRANT SELECT ON {name}.* TO {user}@'127.0.0.1'"))
            .await;
        let url = as_user(&db.url, &user, "pw");
        let error = Rowlock::connect(&url).await.unwrap_err();
        assert!(
            matches!(error, Error::Schema(SchemaError::Denied { .. })),
            "{error}"
        );
        assert!(
            error.to_string().contains("rowlock migrate --print"),
            "{error}"
        );

        db.execute(&rowlock::migration_sql(engine, 0).unwrap())
            .await;
        for table in ["rowlock_lock", "rowlock_database", "rowlock_schema_history"] {
            db.execute(&format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.{table} TO {user}@'127.0.0.1'"
            ))
            .await;
        }
        let rowlock = Rowlock::connect(&url).await.unwrap();
        let held = take(&rowlock, "a", TTL).await;
        let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        held.pin(&mut tx).await.unwrap();
        let _ = rowlock.in_tx(&mut tx).lock("b").acquire().await.unwrap();
        tx.commit().await.unwrap();
        held.release().await.unwrap();
        assert!(rowlock.admin().list().await.unwrap().is_empty());
        drop(rowlock);
        db.execute(&format!("DROP USER {user}@'127.0.0.1'")).await;
        db.remove().await;
    }
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_database_are_told_apart() {
    for engine in DRIVERS {
        let db = Db::new(engine).await;
        let wrong = as_user(&db.url, "nobody", "s3cret");
        let error = Rowlock::connect(&wrong).await.unwrap_err();
        assert!(
            matches!(error, Error::Connect(ConnectError::LoginRefused { .. })),
            "{error}"
        );
        assert!(!format!("{error} {error:?}").contains("s3cret"));
        let missing = format!("{}_missing", db.url);
        let error = Rowlock::connect(&missing).await.unwrap_err();
        assert!(
            matches!(error, Error::Connect(ConnectError::NoSuchDatabase { .. })),
            "{error}"
        );
        db.remove().await;
    }
}

#[tokio::test]
async fn a_session_time_zone_does_not_move_the_clock() {
    for engine in DRIVERS {
        // It is a setting of the whole server.
        let server = Own::start(engine.name(), &[]);
        let db = Db::on(engine, &server.url).await;
        db.execute("SET GLOBAL time_zone = '+05:00'").await;
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        let info = rowlock.inspect("a").await.unwrap().unwrap();
        db.execute("SET GLOBAL time_zone = SYSTEM").await;
        // The fence is the clock in microseconds: UTC, whatever the server's zone.
        let granted = chrono::DateTime::from_timestamp_micros(held.fence()).unwrap();
        assert!(
            (info.acquired_at - granted).num_seconds().abs() < 2,
            "{granted} {info:?}"
        );
        let utc = db.number("SELECT UNIX_TIMESTAMP()").await;
        assert!((info.acquired_at.timestamp() - utc).abs() < 5, "{info:?}");
        db.remove().await;
    }
}

#[tokio::test]
async fn the_applications_time_zone_decides_nothing_in_its_transactions() {
    for engine in DRIVERS {
        let db = Db::new(engine).await;
        let rowlock = db.rowlock().await;
        let held = take(&rowlock, "a", TTL).await;
        let before = take(&rowlock, "b", TTL).await;
        before.release().await.unwrap();
        for zone in ["+13:00", "-11:00"] {
            let options: sqlx::mysql::MySqlConnectOptions = db.url.parse().unwrap();
            let options = options.timezone(Some(zone.to_owned()));
            let pool = sqlx::MySqlPool::connect_with(options).await.unwrap();
            let mut tx = pool.begin().await.unwrap();
            held.pin(&mut tx).await.unwrap();
            let busy = rowlock.in_tx(&mut tx).lock("a").try_acquire().await;
            assert!(busy.unwrap().is_none(), "{zone}: it is held");
            let fence = rowlock.in_tx(&mut tx).lock("b").acquire().await;
            let fence = fence.unwrap().fence();
            assert!(fence > before.fence(), "{zone}");
            // Within a minute of the clock that made the first one.
            assert!(fence - before.fence() < 60_000_000, "{zone}");
            tx.commit().await.unwrap();
            pool.close().await;
        }
        drop((held, before));
        db.remove().await;
    }
}

/// The rows that are there are taken before the rows that are missing are made: when the server refuses the second
/// statement, because it takes no writes any more, the first one has granted something.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_granted_before_the_server_took_no_writes_is_undone() {
    for engine in DRIVERS {
        let db = Db::new(engine).await;
        let rowlock = db.rowlock().await;
        let existing: Vec<String> = (0..40).map(|number| format!("old-{number}")).collect();
        for name in &existing {
            take(&rowlock, name, TTL).await.release().await.unwrap();
        }
        db.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON rowlock_lock FOR EACH ROW
             SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'read only'",
        )
        .await;
        let mut tasks = tokio::task::JoinSet::new();
        for name in existing
            .into_iter()
            .chain((0..40).map(|number| format!("new-{number}")))
        {
            let rowlock = rowlock.clone();
            tasks.spawn(async move { rowlock.lock(name).ttl(TTL).try_acquire().await });
        }
        let mut refused = 0;
        while let Some(taken) = tasks.join_next().await {
            match taken.unwrap() {
                Ok(taken) => drop(taken),
                Err(error) => {
                    assert!(matches!(error, Error::ReadOnly { .. }), "{engine}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused >= 40, "{engine}: {refused}");
        db.execute("DROP TRIGGER refuse").await;
        let owned = "SELECT COUNT(*) FROM rowlock_lock WHERE grant_id IS NOT NULL";
        eventually("all is undone", async || db.number(owned).await == 0).await;
        db.remove().await;
    }
}

/// Under REPEATABLE READ, a locking read of a row that is gone would lock its place until the transaction ends.
#[tokio::test]
async fn a_pin_of_a_permit_that_is_gone_keeps_nobody_out() {
    for engine in DRIVERS {
        let db = Db::new(engine).await;
        let (rowlock, other) = (db.rowlock().await, db.rowlock().await);
        for round in 0..8 {
            let name = format!("permits-{round}");
            let permits = |client: &Rowlock| client.semaphore(name.as_str(), 1).ttl(TTL);
            let lost = permits(&rowlock).acquire().await.unwrap();
            let mut tx = db.begin().await;
            // Of half of the transactions the snapshot still has the permit.
            if round % 2 == 0 {
                tx.number("SELECT COUNT(*) FROM rowlock_lock").await;
            }
            other.admin().force_release(name.as_str()).await.unwrap();
            let next = permits(&other).acquire().await.unwrap();
            next.release().await.unwrap();
            let pinned = tx.pin(&lost).await;
            assert!(matches!(pinned, Err(Error::Lost { .. })), "{pinned:?}");
            // The transaction is still open.
            let permit = permits(&other).wait(patience()).acquire().await.unwrap();
            let near = other.lock(format!("{name}!")).wait(patience());
            let near = near.acquire().await.unwrap();
            let _ = (
                permit.release().await.unwrap(),
                near.release().await.unwrap(),
            );
            tx.release().await;
        }
        db.remove().await;
    }
}
