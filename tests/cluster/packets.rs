//! `MySQL` and `MariaDB` take no statement that is larger than `max_allowed_packet`.

use std::time::Duration;

use rowlock::layer::LayerAttempt as _;
use rowlock::{
    Begun, Error, Fingerprint, Idempotency, IdempotencyGuard, Outcome, RecordError, Rowlock, Scope,
};
use rowlock_test::{Own, take};
use sqlx::mysql::MySqlPool;
use sqlx::{Connection, MySqlConnection, Row};
use tokio::task::JoinSet;

const PACKET: usize = 1 << 20;
const TTL: Duration = Duration::from_secs(30);

async fn small_packets(server: &Own) {
    let mut conn = MySqlConnection::connect(&server.url).await.unwrap();
    let set = format!("SET GLOBAL max_allowed_packet = {PACKET}");
    let set = sqlx::raw_sql(sqlx::AssertSqlSafe(set));
    set.execute(&mut conn).await.unwrap();
}

async fn begin(records: &Idempotency, key: &str) -> IdempotencyGuard {
    match records
        .begin(Scope("s").key(key), &Fingerprint::of("r"))
        .await
        .unwrap()
    {
        Begun::New(guard) => guard,
        other => panic!("{other:?}"),
    }
}

fn outcome(bytes: usize) -> Outcome {
    Outcome::new("a/b", vec![0xA5; bytes]).unwrap()
}

async fn is_kept(records: &Idempotency, key: &str, bytes: usize) -> bool {
    let begun = records
        .begin(Scope("s").key(key), &Fingerprint::of("r"))
        .await;
    matches!(begun.unwrap(), Begun::Replay(kept) if kept.bytes().len() == bytes)
}

#[tokio::test]
async fn an_outcome_that_no_statement_can_carry_is_refused_before_it_is_sent() {
    for kind in ["mysql", "mariadb"] {
        let server = Own::start(kind, &[]);
        small_packets(&server).await;
        let rowlock = Rowlock::connect(&server.url).await.unwrap();
        let records = rowlock.idempotency().max_outcome(4 << 20);
        let guard = begin(&records, "large").await;
        let Err(Error::Record(RecordError::OutcomeTooLarge { limit, .. })) =
            guard.ensure_fits(PACKET)
        else {
            panic!("{kind}: a statement of a packet fits into a packet");
        };
        assert!(limit > PACKET * 4 / 10, "{kind}: {limit} of {PACKET}");
        let refused = guard.complete(&outcome(limit + 1)).await;
        let is_refused = matches!(
            refused,
            Err(Error::Record(RecordError::OutcomeTooLarge { .. }))
        );
        assert!(is_refused, "{kind}: {refused:?}");
        // What the bound allows fits, also when many come at once, and in a transaction.
        guard.complete(&outcome(limit)).await.unwrap();
        assert!(is_kept(&records, "large", limit).await);
        let mut ends = JoinSet::new();
        for n in 0..8 {
            let guard = begin(&records, &format!("n{n}")).await;
            ends.spawn(async move { guard.complete(&outcome(limit)).await });
        }
        while let Some(end) = ends.join_next().await {
            end.unwrap().unwrap();
        }
        let pool = MySqlPool::connect(&server.url).await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let guard = begin(&records, "tx").await;
        guard.complete_in(&mut tx, &outcome(limit)).await.unwrap();
        tx.commit().await.unwrap();
        assert!(is_kept(&records, "tx", limit).await);
        let guard = begin(&records, "step").await;
        let whole = "x".repeat(limit - 2);
        guard
            .step("a", async { Ok::<_, Error>(whole) })
            .await
            .unwrap();
        pool.close().await;
    }
}

/// The client has begun while the server took larger statements.
#[tokio::test]
async fn one_outcome_that_is_too_large_holds_up_nothing_else() {
    for kind in ["mysql", "mariadb"] {
        let server = Own::start(kind, &[]);
        let rowlock = Rowlock::connect(&server.url).await.unwrap();
        let records = rowlock.idempotency().max_outcome(4 << 20).lease(TTL);
        let large = begin(&records, "large").await;
        let mut guards = Vec::new();
        for n in 0..40 {
            guards.push(begin(&records, &format!("n{n}")).await);
        }
        small_packets(&server).await;
        cut_off(&server).await;

        let before = connections(&server).await;
        let mut ends = JoinSet::new();
        let too_large = tokio::spawn(async move { large.complete(&outcome(PACKET)).await });
        for guard in guards {
            ends.spawn(async move { guard.complete(&outcome(10)).await });
        }
        // Claims go together with ends.
        for n in 0..40 {
            let records = records.clone();
            ends.spawn(async move {
                let guard = begin(&records, &format!("new {n}")).await;
                guard.complete(&outcome(10)).await
            });
        }
        for n in 0..20 {
            let rowlock = rowlock.clone();
            ends.spawn(async move {
                let lease = take(&rowlock, &format!("n{n}"), TTL).await;
                lease.release().await
            });
        }
        while let Some(end) = ends.join_next().await {
            end.unwrap().unwrap();
        }
        let made = connections(&server).await - before;
        println!("{kind}: {made} connections");
        let refused = too_large.await.unwrap();
        let is_refused = matches!(refused, Err(Error::Record(RecordError::OutcomeTooLarge { limit, .. })) if limit < PACKET / 2);
        assert!(is_refused, "{kind}: {refused:?}");
        assert!(made < 20, "{kind}: {made} connections were made again");
    }
}

/// How many connections the server has taken so far.
async fn connections(server: &Own) -> i64 {
    let mut conn = MySqlConnection::connect(&server.url).await.unwrap();
    let status = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Connections'");
    let row = status.fetch_one(&mut conn).await.unwrap();
    row.get::<String, _>(1).parse().unwrap()
}

/// Ends all other sessions.
async fn cut_off(server: &Own) {
    let mut conn = MySqlConnection::connect(&server.url).await.unwrap();
    // (`information_schema.processlist` fails on MySQL while a statement has bytes that are no text.)
    let own = sqlx::raw_sql("SELECT CONNECTION_ID()");
    let own: u64 = own.fetch_one(&mut conn).await.unwrap().get(0);
    let list = sqlx::raw_sql("SHOW PROCESSLIST");
    for row in list.fetch_all(&mut conn).await.unwrap() {
        let id: u64 = row.get_unchecked("Id");
        if row.get_unchecked::<&str, _>("User") != "app" || id == own {
            continue;
        }
        let kill = format!("KILL {id}");
        let kill = sqlx::raw_sql(sqlx::AssertSqlSafe(kill));
        // It may have gone by itself.
        let _ = kill.execute(&mut conn).await;
    }
}
