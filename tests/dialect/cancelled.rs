//! A wait in a transaction, which somebody cancels by its session.

use std::sync::atomic::{AtomicU32, Ordering};

use rowlock::{Engine, Error};
use rowlock_test::{Db, eventually, patience};

#[tokio::test]
async fn a_wait_that_is_cancelled_ends() {
    for (engine, session, cancel) in [
        (
            Engine::Postgres,
            "SELECT pg_backend_pid()::bigint",
            "SELECT pg_cancel_backend(%)",
        ),
        (
            Engine::MariaDb,
            "SELECT CAST(CONNECTION_ID() AS SIGNED)",
            "KILL QUERY %",
        ),
        (
            Engine::MySql,
            "SELECT CAST(CONNECTION_ID() AS SIGNED)",
            "KILL QUERY %",
        ),
    ] {
        let db = Db::new(engine).await;
        let rowlock = db.rowlock().await;
        let mut holds = db.begin().await;
        holds.lock(&rowlock, "a").await;
        let mut tx = db.begin().await;
        let cancel = cancel.replace('%', &tx.number(session).await.to_string());
        let waits = tokio::spawn(async move {
            let error = tx.acquire(&rowlock, "a", 2 * patience()).await.unwrap_err();
            tx.release().await;
            error
        });
        eventually("it waits", async || db.waiting().await > 0).await;
        // One may come between two of its statements. If the wait began again each time, some time one of many would.
        let tries = AtomicU32::new(0);
        eventually("it has ended", async || {
            if db.waiting().await > 0 {
                let _ = db.try_execute(&cancel).await;
                tries.fetch_add(1, Ordering::Relaxed);
            }
            waits.is_finished()
        })
        .await;
        let tries = tries.into_inner();
        assert!(tries < 50, "{engine}: ended after {tries} tries");
        let error = waits.await.unwrap();
        assert!(!matches!(error, Error::WaitTimeout { .. }), "{error}");
        println!("{engine}, after {tries} tries: {error}");
        holds.release().await;
        db.remove().await;
    }
}
