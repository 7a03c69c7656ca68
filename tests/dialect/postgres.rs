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
        "GRANT SELECT, INSERT, UPDATE, DELETE ON rowlock_lock, rowlock_database, rowlock_schema_history TO {user}"
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
    let _ = held.release().await.unwrap();
    assert!(rowlock.list().await.unwrap().is_empty());
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
    let indexes = "SELECT count(*) FROM pg_index WHERE indrelid = 'rowlock_lock'::regclass";
    assert_eq!(db.number(indexes).await, 1, "the primary key, and no more");
    let half = "SELECT count(*) FROM pg_class WHERE oid = 'rowlock_lock'::regclass \
                AND 'fillfactor=50' = ANY (reloptions)";
    assert_eq!(db.number(half).await, 1);
    db.remove().await;
}
