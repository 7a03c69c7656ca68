//! Tables in a schema of their own, on PostgreSQL.

use rowlock::{ConnectError, Engine, Error, InvalidError, Rowlock};
use rowlock_test::{App, Db, loss};

#[tokio::test]
async fn a_client_has_its_tables_in_the_schema_that_it_names() {
    let db = Db::new(Engine::Postgres).await;
    db.execute("CREATE SCHEMA locks").await;
    let rowlock = Rowlock::builder()
        .schema("locks")
        .connect(&db.url)
        .await
        .unwrap();
    assert!(rowlock.target().contains("locks"), "{}", rowlock.target());
    let held = rowlock.lock("a").acquire().await.unwrap();
    assert_eq!(
        db.number("SELECT count(*) FROM locks.rowlock_lock").await,
        1
    );
    // It is another set of locks.
    let other = db.rowlock().await;
    let free = other.lock("a").try_acquire().await.unwrap();
    assert!(free.is_some());

    // A transaction finds the tables by its own path.
    let separator = if db.url.contains('?') { '&' } else { '?' };
    let app = App::connect(
        &format!("{}{separator}options[search_path]=public,locks", db.url),
        1,
    )
    .await;
    let mut tx = app.begin().await;
    let error = tx.pin(&held).await.unwrap_err();
    assert!(
        matches!(error, Error::Transaction(_)),
        "public has tables, too: {error}"
    );
    tx.release().await;
    drop((free, other));
    let app = App::connect(
        &format!("{}{separator}options[search_path]=locks,public", db.url),
        1,
    )
    .await;
    let mut tx = app.begin().await;
    tx.pin(&held).await.unwrap();
    tx.commit().await.unwrap();
    let _ = loss(held.release().await);
    db.remove().await;
}

#[tokio::test]
async fn a_schema_that_cannot_be_is_refused_and_says_why() {
    let db = Db::new(Engine::Postgres).await;
    for name in ["", "Locks", "a b", "\"a\"", "a;b"] {
        let error = Rowlock::builder()
            .schema(name)
            .connect(&db.url)
            .await
            .unwrap_err();
        let is_setting = matches!(
            error,
            Error::Invalid(InvalidError::Setting {
                setting: "schema",
                ..
            })
        );
        assert!(is_setting, "{name}: {error}");
    }
    let error = Rowlock::builder()
        .schema("nowhere")
        .connect(&db.url)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Connect(ConnectError::NoSchema { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("nowhere"), "{error}");
    let App::Postgres(pool) = &db.app else {
        unreachable!("it is PostgreSQL")
    };
    let error = Rowlock::builder()
        .schema("locks")
        .from_pool(pool)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("search_path"), "{error}");
    db.remove().await;
    for engine in [Engine::MySql, Engine::Sqlite] {
        let db = Db::new(engine).await;
        let error = Rowlock::builder()
            .schema("locks")
            .connect(&db.url)
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("only PostgreSQL has schemas"),
            "{error}"
        );
        db.remove().await;
    }
}
