//! SQLite: a disk that is full. (`max_page_count` is SQLite's own disk for this: it fails with `SQLITE_FULL`.)

use rowlock::{Begun, Engine, Error, Fingerprint, Outcome, Retry, Scope};
use rowlock_test::Db;
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqlitePoolOptions;

fn request() -> Fingerprint {
    Fingerprint::of("request")
}

#[tokio::test]
async fn an_outcome_for_which_there_is_no_room_is_an_error_and_nothing_has_happened() {
    let db = Db::new(Engine::Sqlite).await;
    let rowlock = db.rowlock().await;
    db.execute("CREATE TABLE payment (id TEXT NOT NULL)").await;
    let idempotency = rowlock.idempotency().retry(Retry::new().attempts(3));
    let pages = db.number("PRAGMA page_count").await;
    let limit = format!("PRAGMA max_page_count = {}", pages + 4);
    let full = SqlitePoolOptions::new()
        .max_connections(1)
        .after_connect(move |conn, _| {
            let limit = limit.clone();
            Box::pin(async move {
                sqlx::raw_sql(AssertSqlSafe(limit)).execute(conn).await?;
                Ok(())
            })
        })
        .connect(&db.url)
        .await
        .unwrap();
    let pay = |pool: sqlx::SqlitePool, bytes: usize| {
        let idempotency = idempotency.clone();
        async move {
            let run =
                idempotency.run_in_tx(&pool, Scope("s").key("k"), request(), |mut tx| async move {
                    sqlx::raw_sql("INSERT INTO payment VALUES ('a')")
                        .execute(&mut *tx)
                        .await?;
                    Outcome::new("b", vec![7; bytes])
                });
            run.await
        }
    };
    let error: Error = pay(full.clone(), 500_000).await.unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    assert_eq!(db.number("SELECT COUNT(*) FROM payment").await, 0);
    assert_eq!(
        db.number("SELECT COUNT(*) FROM rowlock_idempotency").await,
        0
    );

    // The same connection goes on, and an attempt with a guard can be completed when there is room again.
    let Begun::New(guard) = idempotency
        .begin(Scope("s").key("k2"), &request())
        .await
        .unwrap()
    else {
        panic!("new")
    };
    let large = Outcome::new("b", vec![7; 500_000]).unwrap();
    let mut tx = full.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = guard.complete_in(&mut tx, &large).await.unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    drop(tx);
    let again = pay(full.clone(), 10).await.unwrap();
    assert!(matches!(again, Begun::New(_)), "{again:?}");
    guard.complete(&large).await.unwrap();
    assert_eq!(db.number("SELECT COUNT(*) FROM payment").await, 1);
    full.close().await;
    db.remove().await;
}
