//! PostgreSQL keeps the plan of a prepared statement until somebody analyzes the table.

use std::time::Duration;

use rowlock::{Engine, Rowlock};
use rowlock_test::{Db, eventually, take};

const ROWS: i64 = 200_000;
const TTL: Duration = Duration::from_mins(5);

/// The rows of the table that were read one after the other, by whomever. (A server tells at most a second later, when
/// it goes on working.)
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
            held.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    for name in ["a", "b", "c"] {
        take(&rowlock, name, TTL).await.release().await.unwrap();
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

/// The plan of a prepared statement stays when its table grows (until that is analyzed again).
#[tokio::test]
async fn what_was_planned_for_a_small_table_does_not_read_all_of_a_large_one() {
    const NAMES: i64 = 40;
    const ROUNDS: i64 = 20;
    let db = Db::new(Engine::Postgres).await;
    // The cleaner reads the rows below one after another: nobody has used them for ten days.
    let rowlock = Rowlock::builder().clean_every(None);
    let rowlock = rowlock.connect(&db.url).await.unwrap();
    db.execute("ALTER TABLE rowlock_lock SET (autovacuum_enabled = false)")
        .await;
    let all = async || {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..NAMES {
            let rowlock = rowlock.clone();
            tasks.spawn(async move { take(&rowlock, &format!("n{n}"), TTL).await });
        }
        let held = tasks.join_all().await;
        let mut tasks = tokio::task::JoinSet::new();
        for held in held {
            tasks.spawn(async move { held.release().await.unwrap() });
        }
        tasks.join_all().await;
    };
    all().await; // the rows
    // From the sixth execution on, a session keeps its plan.
    for _ in 0..ROUNDS {
        all().await;
    }
    db.execute(
        "INSERT INTO rowlock_lock (name, fence) \
         SELECT convert_to('row ' || n, 'UTF8'), 1 FROM generate_series(1, 50000) n",
    )
    .await;
    let of_table = |what: &str| {
        format!("SELECT {what} FROM pg_stat_user_tables WHERE relname = 'rowlock_lock'")
    };
    let (updates, read) = (of_table("n_tup_upd"), of_table("seq_tup_read"));
    let told = async |rounds: i64| {
        let expected = NAMES * (1 + 2 * rounds);
        eventually("the sessions have told what they did", async || {
            // What a session tells late, it tells with its next statement.
            let _ = (rowlock.version("n0").await, rowlock.version("n1").await);
            db.number(&updates).await >= expected
        })
        .await;
    };
    told(ROUNDS).await;
    let before = db.number(&read).await;
    for _ in 0..ROUNDS {
        all().await;
    }
    told(2 * ROUNDS).await;
    let read = db.number(&read).await - before;
    assert!(read < 50_000, "{read} rows were read one after another");
    drop(rowlock);
    db.remove().await;
}
