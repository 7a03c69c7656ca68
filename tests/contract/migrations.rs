//! Migrations: applied once, by whoever comes first, and checked by everybody else.

use std::sync::Arc;
use std::time::Duration;

use rowlock::{Error, Rowlock, SchemaError};
use rowlock_test::{Db, on_every_engine, take};

/// The files in each folder below `migrations/`.
const MIGRATIONS: i64 = 3;

const TABLES: [&str; 10] = [
    "rowlock_lock",
    "rowlock_database",
    "rowlock_idempotency",
    "rowlock_idempotency_step",
    "rowlock_form_token",
    "rowlock_session",
    "rowlock_waiter",
    "rowlock_waiting_owner",
    "rowlock_run",
    "rowlock_schema_history",
];

fn count(rowlock: &Rowlock) -> i64 {
    let of_table = |applied: &&String| applied.starts_with('V');
    let applied = rowlock.admin().applied_migrations().iter().filter(of_table);
    applied.count().try_into().unwrap()
}

/// Whether a lock is refused because of a quarantine.
async fn is_refused(rowlock: &Rowlock) -> bool {
    let asked = rowlock.lock("a").wait(Duration::ZERO).acquire().await;
    matches!(asked, Err(Error::WaitTimeout { busy, .. }) if busy.quarantine.is_some())
}

on_every_engine! {
    in an empty database:

    async fn tables_of_an_older_version_are_brought_up_to_date(db: &Db) {
        let first = db.rowlock().await;
        let fence = take(&first, "a", Duration::from_secs(30)).await.fence();
        first.flush().await;
        for table in ["rowlock_idempotency", "rowlock_idempotency_step", "rowlock_form_token"] {
            db.execute(&format!("DROP TABLE {table}")).await;
        }
        db.execute("DELETE FROM rowlock_schema_history WHERE version > 2").await;
        let error = Rowlock::builder().migrate(false).connect(&db.url).await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Older { found: 2, .. })), "{error}");
        let second = db.rowlock().await;
        assert_eq!(count(&second), MIGRATIONS - 2);
        assert!(take(&second, "a", Duration::from_secs(30)).await.fence() > fence);
    }

    async fn sixteen_clients_start_at_the_same_instant(db: &Db) {
        for _ in 0..5 {
            let start = Arc::new(tokio::sync::Barrier::new(16));
            let mut clients = tokio::task::JoinSet::new();
            for _ in 0..16 {
                let (url, start) = (db.url.clone(), Arc::clone(&start));
                clients.spawn(async move {
                    start.wait().await;
                    count(&Rowlock::connect(&url).await.unwrap())
                });
            }
            let mut applied = 0_i64;
            while let Some(client) = clients.join_next().await {
                applied += client.unwrap();
            }
            assert_eq!(applied, MIGRATIONS, "somebody, and only one");
            for table in TABLES {
                db.execute(&format!("DROP TABLE {table}")).await;
            }
        }
    }

    async fn starting_without_migrating_checks_the_version(db: &Db) {
        let unmigrated = Rowlock::builder().migrate(false);
        let error = unmigrated.clone().connect(&db.url).await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Missing { .. })), "{error}");
        assert!(error.to_string().contains("rowlock migrate"), "{error}");
        let first = db.rowlock().await;
        assert_eq!(count(&first), MIGRATIONS);
        let second = unmigrated.connect(&db.url).await.unwrap();
        assert!(second.admin().applied_migrations().is_empty());
    }

    async fn a_changed_migration_and_a_newer_schema_are_refused(db: &Db) {
        drop(db.rowlock().await);
        let history = "rowlock_schema_history";
        db.execute(&format!(
            "INSERT INTO {history} (version, name, applied_on, checksum) \
             VALUES (999, 'later', '2030-01-01T00:00:00Z', '1')"
        ))
        .await;
        let error = Rowlock::connect(&db.url).await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Newer { found: 999, .. })), "{error}");
        assert!(error.to_string().contains("update rowlock"), "{error}");

        db.execute(&format!("DELETE FROM {history} WHERE version = 999")).await;
        db.execute(&format!("UPDATE {history} SET checksum = '1'")).await;
        let error = Rowlock::connect(&db.url).await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Changed { .. })), "{error}");
        assert!(error.to_string().contains("V1__database"), "{error}");
    }

    async fn tables_that_rowlock_did_not_make_are_refused(db: &Db) {
        db.execute("CREATE TABLE rowlock_lock (x INTEGER)").await;
        for migrate in [true, false] {
            let error = Rowlock::builder().migrate(migrate).connect(&db.url).await.unwrap_err();
            assert!(matches!(error, Error::Schema(SchemaError::Damaged { .. })), "{error}");
        }
        db.execute("DROP TABLE rowlock_lock").await;
        drop(db.rowlock().await);
        db.execute("ALTER TABLE rowlock_form_token RENAME COLUMN issued_at TO x").await;
        let error = Rowlock::connect(&db.url).await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Damaged { .. })), "{error}");
        assert!(error.to_string().contains("issued_at"), "{error}");
        db.execute("ALTER TABLE rowlock_form_token RENAME COLUMN x TO issued_at").await;
        drop(db.rowlock().await);
        db.execute("DROP TABLE rowlock_lock").await;
        let error = Rowlock::connect(&db.url).await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Damaged { .. })), "{error}");
        db.execute("DROP TABLE rowlock_schema_history").await;
        db.execute("CREATE TABLE rowlock_schema_history (x INTEGER)").await;
        let error = Rowlock::connect(&db.url).await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Damaged { .. })), "{error}");
    }

    async fn a_dba_applies_the_printed_sql(db: &Db) {
        let sql = rowlock::migration_sql(db.engine, 0).unwrap();
        db.execute(&sql).await;
        let rowlock = Rowlock::builder().migrate(false).connect(&db.url).await.unwrap();
        let held = rowlock.lock("a").acquire().await.unwrap();
        held.release().await.unwrap();
        assert!(db.rowlock().await.admin().applied_migrations().is_empty());
    }

    async fn a_new_database_is_in_quarantine_before_it_has_a_table_of_locks(db: &Db) {
        // Of another program: the migrations that make the rest cannot be used.
        db.execute("CREATE TABLE rowlock_idempotency (x INTEGER)").await;
        let new = Rowlock::builder().quarantine(Duration::from_mins(10));
        let error = new.clone().connect(&db.url).await.unwrap_err();
        assert!(matches!(error, Error::Schema(SchemaError::Damaged { .. } | SchemaError::Failed { .. })), "{error}");
        let quarantined = "SELECT COUNT(*) FROM rowlock_database WHERE quarantine_until IS NOT NULL";
        assert_eq!(db.number(quarantined).await, 1);
        db.execute("DROP TABLE rowlock_idempotency").await;
        db.execute("DELETE FROM rowlock_schema_history WHERE version > 2").await;
        let after = db.rowlock().await;
        assert!(is_refused(&after).await);
        // A client that connects in quarantine to a database with all tables.
        after.admin().end_quarantine().await.unwrap();
        assert!(!is_refused(&after).await);
        drop(new.migrate(false).connect(&db.url).await.unwrap());
        assert!(is_refused(&after).await);
    }
}
