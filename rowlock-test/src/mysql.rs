//! Databases on MySQL and MariaDB, and queries for their sessions and open transactions.

use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, MySqlPool, Row};

use crate::Db;

pub(crate) async fn create(server: &str, name: &str, url: &str) -> MySqlPool {
    administer(server, format!("CREATE DATABASE {name}")).await;
    // ARCHITECTURE.md, "A statement that is cut off and fails", has the reason.
    let pool = MySqlPoolOptions::new()
        .max_connections(4)
        .after_release(|conn, _| {
            Box::pin(async move {
                let _ = conn.ping().await;
                Ok(true)
            })
        });
    pool.connect(url).await.unwrap()
}

pub(crate) async fn drop(server: &str, name: &str) {
    administer(server, format!("DROP DATABASE {name}")).await;
}

async fn administer(server: &str, sql: String) {
    let mut admin = MySqlConnection::connect(server).await.unwrap();
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    sql.execute(&mut admin).await.unwrap();
}

impl Db {
    /// The sessions that use this database.
    pub async fn sessions(&self, conn: &mut MySqlConnection) -> Vec<i64> {
        sessions(conn, &self.name).await
    }
}

/// This does not read the table PROCESSLIST: MySQL cannot read it while a session's statement is not UTF-8.
async fn sessions(conn: &mut MySqlConnection, database: &str) -> Vec<i64> {
    sqlx::raw_sql("SHOW PROCESSLIST")
        .fetch_all(conn)
        .await
        .unwrap()
        .iter()
        .filter(|row| row.get::<Option<&str>, _>("db") == Some(database))
        .map(|row| row.get_unchecked("Id"))
        .collect()
}

/// The open transactions of the users of `database`, each as the server describes it.
///
/// This reads the server's status, because the table `INNODB_TRX` is a cache: the server refreshes it only when no session has
/// read it for 0.1 s (MySQL manual, 17.15.2.3). A test that reads it in a loop would never see the end of a transaction.
pub(crate) async fn transactions(pool: &MySqlPool, database: &str) -> Vec<String> {
    let mut conn = pool.acquire().await.unwrap();
    let sessions = sessions(&mut conn, database).await;
    let status = sqlx::raw_sql("SHOW ENGINE INNODB STATUS")
        .fetch_one(&mut *conn)
        .await
        .unwrap();
    let status: String = status.get(2);
    let session = |text: &str| -> Option<i64> {
        let id = &text[text.find("thread id ")? + "thread id ".len()..];
        id[..id.find(',')?].parse().ok()
    };
    let is_active = |text: &&str| {
        let head = text.lines().next();
        head.is_some_and(|line| line.contains("ACTIVE"))
    };
    let blocks = status.split("---TRANSACTION ").skip(1);
    blocks
        .filter(is_active)
        .filter(|text| session(text).is_some_and(|id| sessions.contains(&id)))
        .map(str::to_owned)
        .collect()
}
