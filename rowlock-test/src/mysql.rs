//! MySQL. MariaDB is like it in most respects.

use sqlx::mysql::MySqlPoolOptions;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, MySqlPool, Row};

use crate::kind::{Kind, New};
use crate::mysql_idle::sessions;
use crate::{App, Db, mysql_idle, with_database};

pub(crate) const KIND: Kind = Kind {
    one_writer: false,
    has_server: true,
    refuses_newer_rows: false,
    waits_for_leases: false,
    gives_names_back: false,
    tells_changed_rows: false,
    nowhere: "mysql://me:s3cret@127.0.0.1:1/shop",
    readable: "?ssl-mode=disabled",
    // The second one commits.
    ends: &["ROLLBACK", "CREATE TABLE another (n BIGINT)"],
    lock_table: "LOCK TABLES rowlock_lock WRITE",
    serializable: None,
    // SERIALIZABLE adds the same to every read.
    share: " LOCK IN SHARE MODE",
    settings: None,
    // INSERT IGNORE would swallow other errors as well; ON DUPLICATE KEY UPDATE writes.
    unless_exists: |_| String::new(),
    refuse: |table, column, bytes| {
        format!(
            "CREATE TRIGGER refused BEFORE UPDATE ON {table} FOR EACH ROW IF NEW.{column} = {bytes} \
             THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF"
        )
    },
    end_idle: Some("SET SESSION wait_timeout = 1"),
    micros: "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
    now: "UTC_TIMESTAMP(6)",
    moved: |time, seconds| format!("{time} + INTERVAL {seconds} SECOND"),
    bytes: |hex| format!("x'{hex}'"),
    unchecked: |table, constraint, sql| {
        format!("ALTER TABLE {table} DROP CHECK {constraint}; {sql}")
    },
    create: |server, name| Box::pin(create(server, name)),
    drop: |server, name| Box::pin(administer(server, format!("DROP DATABASE {name}"))),
    create_migrated: |engine, server, name| {
        Box::pin(async move { connect(server, mysql_idle::take(engine, server, name).await).await })
    },
    drop_migrated: |server, name| Box::pin(mysql_idle::give_back(server, name)),
    open_transactions: |db| Box::pin(async { count(&transactions(db).await) }),
    waiting: |db| {
        Box::pin(async {
            let mut open = transactions(db).await;
            open.retain(|text| text.contains("LOCK WAIT"));
            count(&open)
        })
    },
    clients: |db| {
        Box::pin(async {
            let mut conn = pool(db).acquire().await.unwrap();
            let all = count(&sessions(&mut conn, &db.name).await);
            all - i64::from(pool(db).size())
        })
    },
};

fn count<T>(all: &[T]) -> i64 {
    i64::try_from(all.len()).unwrap()
}

fn pool(db: &Db) -> &MySqlPool {
    let App::MySql(pool) = &db.app else {
        unreachable!("`create` makes it")
    };
    pool
}

async fn create(server: &str, name: String) -> New {
    administer(server, format!("CREATE DATABASE {name}")).await;
    connect(server, name).await
}

/// Opens the application's pool.
async fn connect(server: &str, name: String) -> New {
    // docs/internals/engines.md, "A statement that is cut off and fails", has the reason.
    let options = MySqlPoolOptions::new()
        .max_connections(4)
        .after_release(|conn, _| {
            Box::pin(async move {
                let _ = conn.ping().await;
                Ok(true)
            })
        });
    let url = with_database(server, &name);
    let pool = options.connect(&url).await.unwrap();
    New {
        name,
        url,
        app: App::MySql(pool),
        dir: None,
    }
}

async fn administer(server: &str, sql: String) {
    let mut admin = MySqlConnection::connect(server).await.unwrap();
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    sql.execute(&mut admin).await.unwrap();
}

/// The open transactions of the database's users, each as the server describes it.
///
/// This reads the server's status, because the table `INNODB_TRX` is a cache: the server refreshes it only when no
/// session has read it for 0.1 s (MySQL manual, 17.15.2.3). A test that reads it in a loop would never see the end of
/// a transaction.
async fn transactions(db: &Db) -> Vec<String> {
    let mut conn = pool(db).acquire().await.unwrap();
    let sessions = sessions(&mut conn, &db.name).await;
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
