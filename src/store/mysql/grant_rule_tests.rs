//! A statement that the server sent grants nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::task::JoinSet;

use super::*;
use crate::store::mysql::fault::is_lock_time_out;
use crate::store::mysql::grant_rule::may_grant;
use crate::store::verbs::quarantine::{Limit, QuarantineStore};

/// Waits for the row for at most 3 ms. The server may cut it after the wait, in the subquery.
const MAY: &str = concat!(
    "/*M! SET STATEMENT max_statement_time = 0.003 FOR */ SELECT /*+ MAX_EXECUTION_TIME(3) */ CAST(",
    may_grant!(),
    " AS SIGNED), MAX(waiters) FROM rowlock_lock WHERE name = 'a' FOR UPDATE"
);

/// So many of them are sent. About one in 500 is cut in the subquery.
const STATEMENTS: u32 = 6_000;

/// Holds the row for up to 4 ms, again and again.
async fn hold(place: Database, stop: Arc<AtomicBool>) {
    let mut conn = place.connect().await;
    while !stop.load(Ordering::Relaxed) {
        let micros = fastrand::u32(1_000..4_000);
        let hold = format!(
            "START TRANSACTION; SELECT name FROM rowlock_lock WHERE name = 'a' FOR UPDATE; \
             DO SLEEP({micros} / 1000000); COMMIT"
        );
        Database::run(&mut conn, &hold).await;
    }
}

async fn ask(place: Database, stop: Arc<AtomicBool>, sent: Arc<AtomicU32>) {
    let mut conn = place.connect().await;
    while !stop.load(Ordering::Relaxed) {
        match sqlx::raw_sql(MAY).fetch_one(&mut conn).await {
            Ok(row) => assert_eq!(row.get::<i64, _>(0), 0, "it grants in a quarantine"),
            Err(error) => assert!(is_lock_time_out(&error), "{error}"),
        }
        if sent.fetch_add(1, Ordering::Relaxed) >= STATEMENTS {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

pub(super) async fn a_statement_that_is_cut_grants_nothing(place: &Database) {
    let mut client = Client::new(place).await;
    let held = client.hold("a").await;
    client.release(held.params.grant_id, "a", held.fence).await;
    let limit = Limit::new().next();
    client
        .conn
        .quarantine_begin(TTL * 100, limit)
        .await
        .unwrap();
    let (stop, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let mut tasks = JoinSet::new();
    tasks.spawn(hold(place.clone(), Arc::clone(&stop)));
    for _ in 0..12 {
        tasks.spawn(ask(place.clone(), Arc::clone(&stop), Arc::clone(&sent)));
    }
    tasks.join_all().await;
}
