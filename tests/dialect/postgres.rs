//! PostgreSQL: its isolation levels, its rights, and its HOT updates.

use std::time::Duration;

use rowlock::{Engine, Error, Rowlock};

use crate::common::{Db, as_user, take};

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
            let _ = held.release().await.unwrap();
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    db.remove().await;
}

#[tokio::test]
async fn the_rights_at_run_time_are_those_on_rows() {
    let db = Db::new(Engine::Postgres).await;
    let user = format!("u_{}", db.url.rsplit('/').next().unwrap());
    db.execute(&format!(
        "CREATE ROLE {user} LOGIN PASSWORD 'pw'; REVOKE CREATE ON SCHEMA public FROM PUBLIC"
    ))
    .await;
    let url = as_user(&db.url, &user, "pw");

    let error = Rowlock::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::MigrationDenied { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("rowlock migrate --print postgres"),
        "{error}"
    );

    db.execute(&rowlock::migration_sql(Engine::Postgres).unwrap())
        .await;
    db.execute(&format!(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON rowlock_lock, rowlock_schema_history TO {user}"
    ))
    .await;
    // Connecting as usual, with migrating on: there is nothing to create.
    let rowlock = Rowlock::connect(&url).await.unwrap();
    let held = take(&rowlock, "a", TTL).await;
    let _ = held.release().await.unwrap();
    assert!(rowlock.list().await.unwrap().is_empty());
    drop(rowlock);
    db.execute(&format!("DROP OWNED BY {user}; DROP ROLE {user}"))
        .await;
    db.remove().await;
}

#[tokio::test]
async fn grants_and_releases_stay_on_their_page() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = db.rowlock().await;
    for _ in 0..500 {
        let held = take(&rowlock, "a", TTL).await;
        let _ = held.release().await.unwrap();
    }
    let pages = db
        .number("SELECT pg_relation_size('rowlock_lock') / 8192")
        .await;
    // Without HOT updates and pruning, a thousand versions fill more than fifteen.
    assert!(pages <= 6, "{pages} pages for one row");
    drop(rowlock);
    db.remove().await;
}
