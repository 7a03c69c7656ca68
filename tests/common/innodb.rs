//! What MySQL and MariaDB tell of sessions, and `InnoDB` of open transactions.

use sqlx::{MySqlConnection, Row};

use super::{App, Db};

impl Db {
    /// The sessions that use this database.
    ///
    /// Not from the table PROCESSLIST: MySQL cannot read it while the text of any session's statement is not UTF-8.
    pub(crate) async fn sessions(&self, conn: &mut MySqlConnection) -> Vec<i64> {
        sqlx::raw_sql("SHOW PROCESSLIST")
            .fetch_all(conn)
            .await
            .unwrap()
            .iter()
            .filter(|row| row.get::<Option<&str>, _>("db") == Some(&self.name))
            .map(|row| row.get_unchecked("Id"))
            .collect()
    }

    /// The open transactions of this database's users, each as the server describes it.
    ///
    /// The server's status, because the table `INNODB_TRX` tells what was: it is filled anew only when nobody has read it
    /// for 0.1 s (MySQL manual, 17.15.2.3), and a test that looks again and again would never see a transaction's end.
    pub(super) async fn innodb_transactions(&self) -> Vec<String> {
        let App::MySql(pool) = &self.app else {
            unreachable!("only for MySQL and MariaDB")
        };
        let mut conn = pool.acquire().await.unwrap();
        let sessions = self.sessions(&mut conn).await;
        let status = sqlx::raw_sql("SHOW ENGINE INNODB STATUS")
            .fetch_one(&mut *conn)
            .await
            .unwrap();
        let status: String = status.get(2);
        let session = |text: &str| -> Option<i64> {
            let id = &text[text.find("thread id ")? + "thread id ".len()..];
            id[..id.find(',')?].parse().ok()
        };
        let blocks = status.split("---TRANSACTION ").skip(1);
        blocks
            .filter(|text| {
                text.lines()
                    .next()
                    .is_some_and(|line| line.contains("ACTIVE"))
            })
            .filter(|text| session(text).is_some_and(|id| sessions.contains(&id)))
            .map(str::to_owned)
            .collect()
    }
}
