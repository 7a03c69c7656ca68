//! The rows that are in the tables before a run, and the transaction beside which a run may happen.

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, SqliteConnection};

use crate::Failure;
use crate::servers::Place;
use crate::workload::Workload;

const DIGIT: &str = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
    UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";

/// The numbers from 0 on, at least `count`, on every engine.
fn numbers(count: u32) -> String {
    let digits = 0..=count.checked_ilog10().unwrap_or(0);
    let tables = digits.clone().map(|digit| format!("{DIGIT} AS d{digit}"));
    let sum = digits.map(|digit| format!("{} * d{digit}.d", 10_u32.pow(digit)));
    let (tables, sum): (Vec<_>, Vec<_>) = (tables.collect(), sum.collect());
    format!(
        "SELECT {} AS n FROM {}",
        sum.join(" + "),
        tables.join(" CROSS JOIN ")
    )
}

/// Puts the names of the workload into `table`, free. Names that are there stay.
pub(crate) async fn fill(
    place: Place,
    url: &str,
    table: &str,
    workload: Workload,
    tasks: u32,
) -> Result<(), Failure> {
    let (prefix, count) = (workload.prefix(), workload.names(tasks));
    let numbers = numbers(count);
    let rows =
        |name: String| format!("SELECT {name}, 1 FROM ({numbers}) AS numbers WHERE n < {count}");
    match place {
        Place::Postgres => {
            let rows = rows(format!("convert_to('{prefix}' || n, 'UTF8')"));
            let sql = format!("INSERT INTO {table} (name, fence) {rows} ON CONFLICT DO NOTHING");
            let mut conn = PgConnection::connect(url).await?;
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await?;
        }
        Place::Sqlite => {
            let rows = rows(format!("CAST('{prefix}' || n AS BLOB)"));
            let sql = format!("INSERT OR IGNORE INTO {table} (name, fence) {rows}");
            let mut conn = SqliteConnection::connect(url).await?;
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await?;
            conn.close().await?;
        }
        _ => {
            let rows = rows(format!("CONCAT('{prefix}', n)"));
            let sql = format!("INSERT IGNORE INTO {table} (name, fence) {rows}");
            let mut conn = MySqlConnection::connect(url).await?;
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await?;
        }
    }
    if place == Place::Postgres {
        // Not before each run: after a checkpoint, PostgreSQL writes every changed page once as a whole, and runs on
        // many pages would be slower than they are most of the time.
        let mut conn = PgConnection::connect(url).await?;
        sqlx::raw_sql("CHECKPOINT").execute(&mut conn).await?;
    }
    tidy(place, url, table).await
}

/// Has the database do now what it might otherwise do during a run: remove old row versions, collect statistics.
pub(crate) async fn tidy(place: Place, url: &str, table: &str) -> Result<(), Failure> {
    match place {
        Place::Postgres => {
            let mut conn = PgConnection::connect(url).await?;
            let sql = AssertSqlSafe(format!("VACUUM (ANALYZE) {table}"));
            sqlx::raw_sql(sql).execute(&mut conn).await?;
        }
        Place::MariaDb | Place::MySql => {
            let mut conn = MySqlConnection::connect(url).await?;
            let sql = AssertSqlSafe(format!("ANALYZE TABLE {table}"));
            sqlx::raw_sql(sql).execute(&mut conn).await?;
        }
        _ => {}
    }
    Ok(())
}

/// Opens a transaction with a snapshot of `table`, as that of a dump. It ends when the connection is dropped.
pub(crate) async fn snapshot(url: &str, table: &str) -> Result<PgConnection, Failure> {
    let mut conn = PgConnection::connect(url).await?;
    let begin = sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ");
    begin.execute(&mut conn).await?;
    let look = sqlx::raw_sql(AssertSqlSafe(format!("SELECT count(*) FROM {table}")));
    look.execute(&mut conn).await?;
    Ok(conn)
}
