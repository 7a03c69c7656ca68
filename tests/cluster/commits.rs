//! What a commit of PostgreSQL's can answer: while the standby that it waits for is away, and when the server checks
//! at the end.

use std::sync::atomic::{AtomicU32, Ordering};

use rowlock::{Begun, Engine, Error, Outcome, Retry, Rowlock, Scope};
use rowlock_test::{App, Db, Own, eventually, outcome, request};
use sqlx::{AssertSqlSafe, PgPool};

/// Calls `run_in_tx` whose commit waits for a standby, and has the server call `end` with the process that waits.
/// Returns the answer, and that of a second call with the same key.
async fn ended_by(end: &str) -> [Result<Begun<Outcome>, Error>; 2] {
    let server = Own::start("postgres", &[]);
    let admin = PgPool::connect(&server.url).await.unwrap();
    let idempotency = Rowlock::connect(&server.url).await.unwrap().idempotency();
    for sql in [
        "CREATE TABLE payment (id BIGINT)",
        "ALTER SYSTEM SET synchronous_standby_names = 'away'",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::raw_sql(sql).execute(&admin).await.unwrap();
    }
    let number = async |sql: &str| -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::query_scalar(sql).fetch_one(&admin).await.unwrap()
    };
    // Only commits of the application's wait: the server has `synchronous_commit = off`.
    let app = App::prepared(&server.url, 2, "SET synchronous_commit = on").await;
    let App::Postgres(pool) = &app else {
        unreachable!("it is a pool of PostgreSQL's")
    };
    let pay = async || {
        let paid = idempotency.run_in_tx(
            pool,
            Scope("scope").key("key"),
            request(),
            |mut tx| async move {
                let insert = "INSERT INTO payment VALUES (1)";
                sqlx::raw_sql(insert).execute(&mut *tx).await?;
                Ok::<_, Error>(outcome("paid"))
            },
        );
        paid.await
    };
    let strike = async {
        let waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        eventually("the commit waits", async || {
            number(&format!("SELECT count(*) {waits}")).await == 1
        })
        .await;
        number(&format!("SELECT count({end}(pid)) {waits}")).await;
    };
    let (first, ()) = tokio::join!(pay(), strike);
    let second = pay().await;
    assert_eq!(number("SELECT count(*) FROM payment").await, 1);
    [first, second]
}

#[tokio::test]
async fn a_commit_whose_wait_for_a_standby_is_cancelled_is_one() {
    let [first, second] = ended_by("pg_cancel_backend").await;
    assert!(matches!(first, Ok(Begun::New(_))), "{first:?}");
    assert!(matches!(second, Ok(Begun::Replay(_))), "{second:?}");
}

/// It is committed on the primary.
#[tokio::test]
async fn a_commit_whose_session_ends_while_it_waits_for_a_standby_is_unknown() {
    let [first, second] = ended_by("pg_terminate_backend").await;
    assert!(
        matches!(first, Err(Error::CommitUnknown { .. })),
        "{first:?}"
    );
    assert!(matches!(second, Ok(Begun::Replay(_))), "{second:?}");
}

/// Two transactions that each read what the other one writes: the one that commits later is refused, and begins again.
#[tokio::test]
async fn a_commit_that_fails_to_serialize_is_tried_again() {
    let db = Db::new(Engine::Postgres).await;
    db.execute("CREATE TABLE shift (doctor TEXT)").await;
    let serializable = "SET default_transaction_isolation = 'serializable'";
    let app = App::prepared(&db.url, 2, serializable).await;
    let App::Postgres(pool) = &app else {
        unreachable!("it is a pool of PostgreSQL's")
    };
    let tries = &AtomicU32::new(0);
    let retry = Retry::new();
    let taken = retry.run(pool, |mut tx| async move {
        let on_call: i64 = sqlx::query_scalar(ON_CALL).fetch_one(&mut *tx).await?;
        let is_first = tries.fetch_add(1, Ordering::SeqCst) == 0;
        let mut other = pool.begin().await?;
        if is_first {
            let seen: i64 = sqlx::query_scalar(ON_CALL).fetch_one(&mut *other).await?;
            assert_eq!(seen, on_call);
        }
        if on_call == 0 {
            sqlx::raw_sql(TAKE).execute(&mut *tx).await?;
        }
        if is_first {
            sqlx::raw_sql(TAKE).execute(&mut *other).await?;
        }
        other.commit().await?;
        Ok::<_, Error>(on_call == 0)
    });
    assert!(!taken.await.unwrap());
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    assert_eq!(db.number(ON_CALL).await, 1);
    app.close().await;
    db.remove().await;
}

const ON_CALL: &str = "SELECT count(*) FROM shift";
const TAKE: &str = "INSERT INTO shift VALUES ('me')";

/// Nothing was committed, and the next attempt would fail, too.
#[tokio::test]
async fn a_commit_that_breaks_a_constraint_is_refused_once() {
    let db = Db::new(Engine::Postgres).await;
    db.execute("CREATE TABLE slot (n BIGINT UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        .await;
    let App::Postgres(pool) = &db.app else {
        unreachable!("it is a pool of PostgreSQL's")
    };
    let tries = &AtomicU32::new(0);
    let retry = Retry::new();
    let refused = retry.run(pool, |mut tx| async move {
        tries.fetch_add(1, Ordering::SeqCst);
        let twice = sqlx::raw_sql("INSERT INTO slot VALUES (1), (1)");
        twice.execute(&mut *tx).await?;
        Ok::<_, Error>(())
    });
    let refused = refused.await;
    assert!(
        matches!(refused, Err(Error::Application { .. })),
        "{refused:?}"
    );
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    assert_eq!(db.number("SELECT count(*) FROM slot").await, 0);
    db.remove().await;
}
