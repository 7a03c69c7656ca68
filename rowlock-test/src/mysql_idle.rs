//! Databases of MySQL and MariaDB that wait for the next test.
//!
//! Neither server copies a database, and making the tables takes a tenth of a second. So a database whose test has
//! ended is emptied, and the next test takes it. It is dropped instead if a client of the test still uses it, or if
//! the test changed what the tables are.

use std::collections::{HashMap, VecDeque};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use rowlock::Engine;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};

use crate::with_database;

/// For each server, the names of the databases.
static IDLE: LazyLock<Mutex<HashMap<String, VecDeque<String>>>> = LazyLock::new(Mutex::default);

/// For each server, what the tables are after the migrations.
static MADE: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// Which test used which database, and since when: the name of the database tells its first test only.
const USES: &str = "CREATE DATABASE IF NOT EXISTS rl_uses; \
    CREATE TABLE IF NOT EXISTS rl_uses.uses (began DATETIME(6), name VARCHAR(64), test VARCHAR(64))";

/// How long the clients of a test have to close their connections.
const CLOSING: Duration = Duration::from_secs(1);

/// The tables of rowlock, as they are made: the children of a table first.
const TABLES: [&str; 9] = [
    "rowlock_waiting_owner",
    "rowlock_waiter",
    "rowlock_session",
    "rowlock_form_token",
    "rowlock_idempotency_step",
    "rowlock_idempotency",
    "rowlock_run",
    "rowlock_lock",
    "rowlock_database",
];

async fn run(conn: &mut MySqlConnection, sql: String) {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    sql.execute(conn).await.unwrap();
}

/// A database with the tables of rowlock: one that is idle, or else a new one, with this name.
pub(crate) async fn take(engine: Engine, server: &str, name: String) -> String {
    let mut admin = MySqlConnection::connect(server).await.unwrap();
    let taken = if let Some(idle) = idle(&mut admin, server).await {
        idle
    } else {
        run(&mut admin, format!("CREATE DATABASE {name}; USE {name}")).await;
        run(&mut admin, rowlock::migration_sql(engine, 0).unwrap()).await;
        run(&mut admin, USES.to_owned()).await;
        let made = definition(&mut admin).await;
        let made = made.expect("the tables were just made");
        MADE.lock().unwrap().insert(server.to_owned(), made);
        name.clone()
    };
    let used = format!("INSERT INTO rl_uses.uses VALUES (SYSDATE(6), '{taken}', '{name}')");
    run(&mut admin, used).await;
    admin.close().await.unwrap();
    taken
}

/// The database that has been idle for longest. A client of its last test may have connected again: then the database
/// is dropped.
async fn idle(admin: &mut MySqlConnection, server: &str) -> Option<String> {
    loop {
        let pop = VecDeque::pop_front;
        let name = IDLE.lock().unwrap().get_mut(server).and_then(pop)?;
        if sessions(admin, &name).await.is_empty() {
            return Some(name);
        }
        run(admin, format!("DROP DATABASE {name}")).await;
    }
}

/// Empties the database for the next test, or drops it.
pub(crate) async fn give_back(server: &str, name: &str) {
    let database = with_database(server, name);
    let mut admin = MySqlConnection::connect(&database).await.unwrap();
    if !is_left(&mut admin, name).await || !is_as_made(&mut admin, server).await {
        run(&mut admin, format!("DROP DATABASE {name}")).await;
        return;
    }
    let tables = TABLES.map(|table| format!("DELETE FROM {table}; "));
    let id = "INSERT INTO rowlock_database (one, id) VALUES (1, UNHEX(REPLACE(UUID(), '-', '')))";
    run(&mut admin, tables.concat() + id).await;
    admin.close().await.unwrap();
    let mut idle = IDLE.lock().unwrap();
    let idle = idle.entry(server.to_owned()).or_default();
    idle.push_back(name.to_owned());
}

/// The sessions that use `database`.
///
/// This does not read the table PROCESSLIST: MySQL cannot read it while a session's statement is not UTF-8.
pub(crate) async fn sessions(conn: &mut MySqlConnection, database: &str) -> Vec<i64> {
    sqlx::raw_sql("SHOW PROCESSLIST")
        .fetch_all(conn)
        .await
        .unwrap()
        .iter()
        .filter(|row| row.get::<Option<&str>, _>("db") == Some(database))
        .map(|row| row.get_unchecked("Id"))
        .collect()
}

/// Whether all clients of the test have closed their connections. A client that is still there could write for the
/// next test.
async fn is_left(admin: &mut MySqlConnection, name: &str) -> bool {
    let until = Instant::now() + CLOSING;
    // One is `admin`.
    while sessions(admin, name).await.len() > 1 {
        if Instant::now() > until {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    true
}

/// Whether the tables are as rowlock makes them, after the tables of the test were dropped.
async fn is_as_made(admin: &mut MySqlConnection, server: &str) -> bool {
    let found = sqlx::raw_sql("SHOW FULL TABLES").fetch_all(&mut *admin);
    for row in found.await.unwrap() {
        let (table, kind): (String, String) = (row.get_unchecked(0), row.get_unchecked(1));
        if !table.starts_with("rowlock_") {
            let kind = kind.trim_start_matches("BASE ");
            run(admin, format!("DROP {kind} {table}")).await;
        }
    }
    definition(admin).await.as_ref() == MADE.lock().unwrap().get(server)
}

/// What the tables are, if all are there: their columns, indexes, constraints and triggers, and which migrations made
/// them.
async fn definition(conn: &mut MySqlConnection) -> Option<String> {
    let mut definition = String::new();
    for table in TABLES.iter().chain(&["rowlock_schema_history"]) {
        let table = sqlx::raw_sql(AssertSqlSafe(format!("SHOW CREATE TABLE {table}")));
        let table = table.fetch_one(&mut *conn).await.ok()?;
        definition.push_str(table.get_unchecked::<&str, _>(1));
    }
    let triggers = sqlx::raw_sql("SHOW TRIGGERS")
        .fetch_all(&mut *conn)
        .await
        .unwrap();
    for trigger in triggers {
        definition.push_str(trigger.get_unchecked::<&str, _>(0));
    }
    let history = "SELECT CONCAT_WS(' ', version, name, checksum) FROM rowlock_schema_history ORDER BY version";
    let history = sqlx::raw_sql(history).fetch_all(&mut *conn).await.unwrap();
    for migration in history {
        definition.push_str(migration.get_unchecked::<&str, _>(0));
    }
    Some(definition)
}
