//! What cleaning sends: the general log of a MariaDB server of the test's own tells.

use rowlock::{Engine, Rowlock};
use rowlock_test::{App, Db, Own};

/// Makes the rows of so many locks, half of them unused for eleven days, cleans them one by one, and returns what was
/// sent.
async fn cleaned(db: &Db, rowlock: &Rowlock, locks: u32) -> Vec<String> {
    for number in 0..locks {
        drop(rowlock.version(format!("lock {number:03}")).await.unwrap());
    }
    let days = 11_i64 * 24 * 3_600 * 1_000_000;
    db.execute(&format!(
        "UPDATE rowlock_lock SET fence = fence - {days} WHERE CAST(RIGHT(name, 1) AS INTEGER) % 2 = 0"
    ))
    .await;
    db.execute("TRUNCATE mysql.general_log; SET GLOBAL general_log = 1")
        .await;
    let removed = rowlock.admin().clean_all(1).await.unwrap();
    db.execute("SET GLOBAL general_log = 0").await;
    assert_eq!(removed.locks, u64::from(locks / 2), "{removed:?}");
    let App::MySql(pool) = &db.app else {
        unreachable!("MariaDB only")
    };
    let sent = sqlx::query_scalar(
        "SELECT CONVERT(argument USING latin1) FROM mysql.general_log \
         WHERE command_type IN ('Query', 'Execute') AND argument LIKE '%rowlock_lock%'",
    );
    sent.fetch_all(pool).await.unwrap()
}

#[tokio::test]
async fn the_lock_rows_are_walked_through_once() {
    let server = Own::start(Engine::MariaDb.name(), &[]);
    let db = Db::on(Engine::MariaDb, &server.url).await;
    db.execute("SET GLOBAL log_output = 'TABLE'").await;
    let rowlock = Rowlock::builder();
    let rowlock = rowlock.clean_every(None).connect(&db.url).await.unwrap();
    for locks in [10, 40] {
        db.execute("DELETE FROM rowlock_lock").await;
        let sent = cleaned(&db, &rowlock, locks).await;
        let looks = |sent: &&String| sent.contains("WHERE name >");
        let mut looked: Vec<_> = sent.iter().filter(looks).collect();
        let (looks, others) = (looked.len(), sent.len() - looked.len());
        // One for each row, and one that finds no more.
        assert_eq!(looks, locks as usize + 1, "{sent:#?}");
        looked.sort();
        looked.dedup();
        assert_eq!(looked.len(), looks, "each begins where the last one ended");
        // A row that is to go is locked, and removed.
        assert_eq!(others, locks as usize, "{sent:#?}");
    }
    drop(rowlock);
    db.remove().await;
}
