//! A statement that the server cuts grants nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rowlock_test::eventually;
use tokio::task::JoinSet;

use super::*;
use crate::store::mysql::fault::{is_interrupted, is_lock_time_out};
use crate::store::mysql::grant_rule::may_grant;
use crate::store::verbs::quarantine::QuarantineStore;

/// Waits for the row for at most 3 ms. The server may cut it after the wait, in the subquery.
const MAY: &str = concat!(
    "/*M! SET STATEMENT max_statement_time = 0.003 FOR */ SELECT /*+ MAX_EXECUTION_TIME(3) */ CAST(",
    may_grant!(),
    " AS SIGNED), (SELECT COUNT(*) FROM rowlock_database), MAX(waiters) FROM rowlock_lock WHERE name = 'a' FOR UPDATE"
);

/// So many of them are sent. On MariaDB, the server cuts about one in 500 in a subquery; on MySQL, fewer.
const STATEMENTS: u32 = 6_000;

#[derive(Default)]
struct Asked {
    sent: AtomicU32,
    /// Those with a subquery that was cut.
    empty: AtomicU32,
    stop: AtomicBool,
}

/// Holds the row for up to 4 ms, again and again.
async fn hold(place: Database, asked: Arc<Asked>) {
    let mut conn = place.connect().await;
    while !asked.stop.load(Ordering::Relaxed) {
        let micros = fastrand::u32(1_000..4_000);
        let hold = format!(
            "START TRANSACTION; SELECT name FROM rowlock_lock WHERE name = 'a' FOR UPDATE; \
             DO SLEEP({micros} / 1000000); COMMIT"
        );
        Database::run(&mut conn, &hold).await;
    }
}

async fn ask(place: Database, asked: Arc<Asked>) {
    let mut conn = place.connect().await;
    while !asked.stop.load(Ordering::Relaxed) {
        match sqlx::raw_sql(MAY).fetch_one(&mut conn).await {
            Ok(row) => {
                assert_eq!(row.get::<i64, _>(0), 0, "it grants in a quarantine");
                let count: Option<i64> = row.get(1);
                asked
                    .empty
                    .fetch_add(u32::from(count.is_none()), Ordering::Relaxed);
            }
            Err(error) => assert!(
                is_lock_time_out(&error) || is_interrupted(&error),
                "{error}"
            ),
        }
        asked.sent.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) async fn a_statement_that_is_cut_grants_nothing(place: &Database) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    client.release(held.params.grant_id, "a", held.fence).await;
    client.conn.quarantine_begin(TTL * 100, TTL).await.unwrap();
    let is_mariadb = Database::is_mariadb(&mut client.conn).await;
    let asked = Arc::new(Asked::default());
    let mut tasks = JoinSet::new();
    tasks.spawn(hold(place.clone(), Arc::clone(&asked)));
    for _ in 0..12 {
        tasks.spawn(ask(place.clone(), Arc::clone(&asked)));
    }
    let is_enough = || {
        let is_cut = asked.empty.load(Ordering::Relaxed) > 0 || !is_mariadb;
        is_cut && asked.sent.load(Ordering::Relaxed) >= STATEMENTS
    };
    eventually("enough statements are cut", async || is_enough()).await;
    asked.stop.store(true, Ordering::Relaxed);
    tasks.join_all().await;
}
