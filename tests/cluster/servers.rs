//! Several servers, of which one is the primary; and servers that are gone, or silent.

use std::time::{Duration, Instant};

use rowlock::{ConnectError, Engine, Error, Rowlock};
use rowlock_test::{Db, Own, connected, eventually, join, loss, patience, release, take, turns};
use sqlx::{Connection, PgConnection, Row};

const TTL: Duration = Duration::from_secs(30);

async fn is_standby(url: &str) -> bool {
    let mut conn = PgConnection::connect(url).await.unwrap();
    let row = sqlx::raw_sql("SELECT pg_is_in_recovery()").fetch_one(&mut conn);
    row.await.unwrap().get(0)
}

#[tokio::test]
async fn the_primary_is_found_among_several_servers_and_again_after_a_failover() {
    let primary = Own::start("postgres", &[]);
    let standby = Own::standby(&primary);
    // Nobody listens at the first; the second is not the primary.
    let url = format!(
        "postgres://postgres@127.0.0.1:1,{},{}/postgres",
        standby.address(),
        primary.address()
    );
    let rowlock = Rowlock::connect(&url).await.unwrap();
    let held = take(&rowlock, "a", TTL).await;
    let (fence, address) = (held.fence(), standby.url.clone());
    // The standby may be a little behind: what it has not seen, nobody was promised (it is asynchronous).
    eventually("the standby has the grant", async || {
        let mut conn = PgConnection::connect(&address).await.unwrap();
        let grant = sqlx::raw_sql("SELECT 1 FROM rowlock_lock WHERE grant_id IS NOT NULL");
        grant
            .fetch_optional(&mut conn)
            .await
            .is_ok_and(|row| row.is_some())
    })
    .await;
    assert!(is_standby(&standby.url).await);
    drop(primary); // stopped
    standby.promote().await;
    assert!(rowlock.inspect("a").await.unwrap().is_some());
    let _ = loss(held.release().await);
    let next = take(&rowlock, "a", TTL).await;
    assert!(next.fence() > fence);
    let _ = loss(next.release().await);
    drop(rowlock);

    drop(standby);
    let error = Rowlock::connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(
        error.to_string().contains("server 1:") && error.to_string().contains("server 3:"),
        "{error}"
    );
}

#[tokio::test]
async fn waiters_keep_their_places_over_a_failover() {
    let primary = Own::start("postgres", &[]);
    let standby = Own::standby(&primary);
    let url = format!(
        "postgres://postgres@{},{}/postgres",
        primary.address(),
        standby.address()
    );
    let clients = [
        Rowlock::connect(&url).await.unwrap(),
        Rowlock::connect(&url).await.unwrap(),
    ];
    let held = take(&clients[0], "a", TTL).await;
    let waiting = [
        join(&clients[1], "a", "first").await,
        join(&clients[0], "a", "second").await,
    ];
    let reader = clients[0].rw_lock("catalog").read().await.unwrap();
    let catalog = clients[1].rw_lock("catalog");
    let writer = tokio::spawn(async move { catalog.write().await });
    eventually("the standby has all waiters", async || {
        let mut conn = PgConnection::connect(&standby.url).await.unwrap();
        let count = sqlx::raw_sql("SELECT count(*) FROM rowlock_waiter");
        let row = count.fetch_one(&mut conn).await;
        row.is_ok_and(|row| row.get::<i64, _>(0) == 3)
    })
    .await;
    drop(primary); // stopped
    standby.promote().await;
    release(&held).await;
    assert_eq!(turns(waiting).await, [0, 1]);
    release(&reader).await;
    assert!(writer.await.unwrap().unwrap().is_held());
    drop(clients);
}

#[tokio::test]
async fn a_search_path_without_a_schema_says_so() {
    let db = Db::new(Engine::Postgres).await;
    let url = format!("{}?options=-csearch_path%3Dnosuch", db.url);
    let error = Rowlock::connect(&url).await.unwrap_err();
    assert!(
        matches!(error, Error::Connect(ConnectError::NoSchema { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("(nosuch)"), "{error}");
    db.remove().await;
}

/// Flushing waits for what can be done, and for no lease of a server that is gone to run out.
#[tokio::test]
async fn flushing_ends_when_the_server_is_gone() {
    for kind in ["postgres", "mariadb", "mysql"] {
        let server = Own::start(kind, &[]);
        let second = Duration::from_secs(1);
        let builder = Rowlock::builder().operation_timeout(second);
        let rowlock = connected(&builder, &server.url).await;
        let held = take(&rowlock, "a", Duration::from_hours(1)).await;
        drop(server); // stopped
        drop(held);
        let flushed = tokio::time::timeout(patience(), rowlock.flush()).await;
        flushed.expect("it does not wait for the lease to run out");
    }
}

/// It takes connections, and says nothing.
#[tokio::test]
async fn a_silent_server_leaves_the_next_ones_their_share_of_the_time() {
    for engine in [Engine::Postgres, Engine::MariaDb, Engine::MySql] {
        let db = Db::new(engine).await;
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = (silent.local_addr().unwrap(), silent);
        let (before, after) = db.url.split_once('@').unwrap();
        let url = format!("{before}@{},{after}", silent.0);
        let timeout = Duration::from_secs(4);
        let began = Instant::now();
        let rowlock = Rowlock::builder().operation_timeout(timeout);
        let rowlock = rowlock.connect(&url).await.unwrap();
        assert!(began.elapsed() >= timeout / 2, "{engine} has no such share");
        let held = take(&rowlock, "a", TTL).await;
        let _ = loss(held.release().await);
        drop(rowlock);
        db.remove().await;
    }
}
