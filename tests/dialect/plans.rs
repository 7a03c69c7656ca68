//! PostgreSQL keeps the plan of a prepared statement until somebody analyzes the table.

use std::time::Duration;

use rowlock::Engine;
use rowlock_test::{Db, eventually, take};

const ROWS: i64 = 200_000;
const TTL: Duration = Duration::from_mins(5);

/// The rows of the table that were read one after the other, by whomever. (A server tells at most a second later, when it goes on
/// working.)
async fn read_in_scans(db: &Db) -> i64 {
    let sql = "SELECT seq_tup_read::bigint FROM pg_stat_user_tables WHERE relname = 'rowlock_lock'";
    db.number(sql).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_from_when_the_table_was_small_does_not_outlive_it() {
    let db = Db::new(Engine::Postgres).await;
    let rowlock = db.rowlock().await;
    db.execute("ALTER TABLE rowlock_lock SET (autovacuum_enabled = false)")
        .await;
    let use_it = async || {
        // A pause, so that the server tells what was read.
        for _ in 0..25 {
            let held = take(&rowlock, "a", TTL).await;
            let _ = held.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    for name in ["a", "b", "c"] {
        let _ = take(&rowlock, name, TTL).await.release().await.unwrap();
    }
    db.execute("ANALYZE rowlock_lock").await;
    use_it().await;
    db.execute(&format!(
        "INSERT INTO rowlock_lock (name, fence, grant_id, holder, acquired_at, expires_at)
         SELECT convert_to('row ' || n, 'UTF8'), n, md5(n::text)::uuid, 'another', now(), now() + interval '1 hour'
         FROM generate_series(1, {ROWS}) n"
    ))
    .await;
    eventually("no operation reads the whole table", async || {
        let before = read_in_scans(&db).await;
        use_it().await;
        read_in_scans(&db).await - before < ROWS
    })
    .await;
    drop(rowlock);
    db.remove().await;
}
