//! PostgreSQL keeps the plan of a prepared statement until somebody analyzes the table.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rowlock::{Begun, Engine, Error, Rowlock};
use rowlock_test::{Db, begin, begin_new, eventually, outcome, take};

const ROWS: i64 = 200_000;
const TTL: Duration = Duration::from_mins(5);

/// The rows that were read in tables and in indexes, by whomever. (A server tells at most a second later, when it
/// goes on working.)
async fn rows_read(db: &Db) -> i64 {
    let sql = "SELECT ((SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname LIKE 'rowlock%') +
                       (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname LIKE 'rowlock%'))::bigint";
    db.number(sql).await
}

/// Operations that look rows up by their keys: alone, and eight at once.
async fn use_all(db: &Db, (rowlock, other): (&Rowlock, &Rowlock), n: usize) {
    take(rowlock, "a", TTL).await.release().await.unwrap();
    let in_session = rowlock.lock("b").in_session().acquire().await.unwrap();
    in_session.release().await.unwrap();
    let permit = rowlock.semaphore("c", 2).acquire().await.unwrap();
    permit.release().await.unwrap();
    let held = take(rowlock, "a", TTL).await;
    let waiter = other.lock("a");
    let (waiter, ()) = tokio::join!(waiter.acquire(), async {
        let waiters = "SELECT waiters FROM rowlock_lock WHERE name = 'a'";
        eventually("it waits", async || db.number(waiters).await > 0).await;
        held.release().await.unwrap();
    });
    waiter.unwrap().release().await.unwrap();
    let idempotency = rowlock.idempotency();
    let key = async |key: String| {
        let guard = begin_new(&idempotency, &key).await;
        let charge = guard.step("charge", async { Ok::<_, Error>(7) });
        charge.await.unwrap();
        guard.complete(&outcome("done")).await.unwrap();
        assert!(matches!(begin(&idempotency, &key).await, Begun::Replay(_)));
    };
    key(format!("k{n}")).await;
    let name = async |n: usize| {
        let held = take(rowlock, &format!("n{n}"), TTL).await;
        held.release().await.unwrap();
    };
    let eight = |of: usize| of * 8..of * 8 + 8;
    futures_util::future::join_all(eight(n).map(|n| key(format!("e{n}")))).await;
    futures_util::future::join_all(eight(n).map(name)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_from_when_the_tables_were_small_do_not_outlive_them() {
    let db = Db::new(Engine::Postgres).await;
    // The cleaner would read the rows below.
    let builder = || Rowlock::builder().clean_every(None);
    let rowlock = builder().connect(&db.url).await.unwrap();
    let other = builder().connect(&db.url).await.unwrap();
    for table in [
        "rowlock_lock",
        "rowlock_session",
        "rowlock_waiter",
        "rowlock_idempotency",
        "rowlock_idempotency_step",
    ] {
        let off = format!("ALTER TABLE {table} SET (autovacuum_enabled = false)");
        db.execute(&off).await;
    }
    // Renewals; and looks whether somebody waits for it, while it lingers.
    let renewed = rowlock.lock("renewed").ttl(Duration::from_secs(3));
    let renewed = renewed.acquire().await.unwrap();
    let lingers = rowlock.lock("lingers").linger(Duration::from_mins(1));
    lingers.acquire().await.unwrap().release().await.unwrap();
    let n = AtomicUsize::new(0);
    let use_it = async || {
        // A pause, so that the server tells what was read.
        for _ in 0..25 {
            use_all(&db, (&rowlock, &other), n.fetch_add(1, Ordering::Relaxed)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    use_it().await;
    db.execute("ANALYZE").await;
    use_it().await;
    db.execute(&format!(
        "INSERT INTO rowlock_lock (name, fence, grant_id, holder, acquired_at, expires_at)
         SELECT convert_to('row ' || n, 'UTF8'), n, md5(n::text)::uuid, 'another', now(), now() + interval '1 hour'
         FROM generate_series(1, {ROWS}) n"
    ))
    .await;
    db.execute(&format!(
        "INSERT INTO rowlock_idempotency
         SELECT (jsonb_populate_record(r, jsonb_build_object(
             'idempotency_key', '\\x' || encode(convert_to('row ' || n, 'UTF8'), 'hex')))).*
         FROM rowlock_idempotency r, generate_series(1, {ROWS}) n WHERE idempotency_key = 'k0'"
    ))
    .await;
    for (table, columns, values) in [
        (
            "rowlock_session",
            "id, holder, opened_at",
            "md5(n::text)::uuid, 'another', now()",
        ),
        (
            "rowlock_waiter",
            "name, position, grant_id, session_id, holder, joined_at",
            "'row 1', n, md5(n::text)::uuid, md5(n::text)::uuid, 'another', now()",
        ),
        (
            "rowlock_idempotency_step",
            "scope, idempotency_key, step, attempt, content_type, outcome, done_at",
            "'another', 'k', n::text, 1, 't', '', now()",
        ),
    ] {
        db.execute(&format!(
            "INSERT INTO {table} ({columns}) SELECT {values} FROM generate_series(1, {ROWS}) n"
        ))
        .await;
    }
    // A table that was empty when it was analyzed is read through a whole index. A slow look has its statement planned
    // anew.
    eventually("no operation reads a whole table", async || {
        let before = rows_read(&db).await;
        use_it().await;
        rows_read(&db).await - before < ROWS
    })
    .await;
    renewed.release().await.unwrap();
    drop((rowlock, other));
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
