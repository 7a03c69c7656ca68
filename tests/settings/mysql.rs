//! The variables of MySQL and MariaDB.

use rowlock::Engine;
use rowlock_test::{App, Db, Own};
use sqlx::{AssertSqlSafe, MySqlPool};

use crate::exercise::exercise;
use crate::{Setting, all, judge};

/// Those that once broke something, as the server's default.
const OF_THE_SERVER: &[(&str, &str)] = &[
    ("completion_type", "1"),
    ("completion_type", "2"),
    ("sql_select_limit", "1"),
    ("sql_safe_updates", "1"),
    ("group_concat_max_len", "4"),
    ("transaction_read_only", "1"),
    ("max_join_size", "1"),
    ("init_connect", "'SET timestamp = 1000000000'"),
];

/// And in the application's sessions.
const OF_THE_APPLICATION: &[(&str, &str)] = &[
    ("timestamp", "1000000000"),
    ("timestamp", "2000000000"),
    ("sql_select_limit", "1"),
];

/// More for the long run, besides the server's own list.
const MORE: &[(&str, &str)] = &[
    (
        "sql_mode",
        "'ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH'",
    ),
    ("transaction_isolation", "'SERIALIZABLE'"),
    ("transaction_isolation", "'READ-UNCOMMITTED'"),
    ("max_sort_length", "8"),
    ("time_zone", "'+13:00'"),
    ("character_set_connection", "latin1"),
    ("collation_connection", "utf8mb4_bin"),
];

/// The names that MariaDB has.
fn here(engine: Engine, (name, value): (&str, &str)) -> Setting {
    let is_maria = engine == Engine::MariaDb;
    let name = match name {
        "transaction_isolation" if is_maria => "tx_isolation",
        "transaction_read_only" if is_maria => "tx_read_only",
        other => other,
    };
    Setting::of((name, value))
}

/// The settings to try: `some`, and in the long run all that a session may have.
async fn settings(engine: Engine, admin: &App, some: &[(&str, &str)]) -> Vec<Setting> {
    let mut settings: Vec<_> = some.iter().map(|some| here(engine, *some)).collect();
    if !all() {
        return settings;
    }
    settings.extend(MORE.iter().map(|more| here(engine, *more)));
    let variables: Vec<(String, String)> = sqlx::query_as("SHOW SESSION VARIABLES")
        .fetch_all(pool(admin))
        .await
        .unwrap();
    for (name, is) in variables {
        let others: &[&str] = match is.as_str() {
            "ON" => &["0"],
            "OFF" => &["1"],
            "0" => &["1", "2"],
            "1" => &["0", "2"],
            // A number of a list of words, too.
            _ => &["0", "1"],
        };
        for other in others {
            let setting = Setting::of((&name, other));
            // The server refuses what a session cannot have.
            let set = AssertSqlSafe(format!("SET SESSION {setting}"));
            let mut one = pool(admin).acquire().await.unwrap();
            if sqlx::raw_sql(set).execute(&mut *one).await.is_ok() {
                settings.push(setting);
            }
            one.close().await.unwrap();
        }
    }
    settings
}

fn pool(admin: &App) -> &MySqlPool {
    let App::MySql(pool) = admin else {
        unreachable!("it is the pool of a MySQL server")
    };
    pool
}

/// The application's sessions have the value that the server had before.
pub(crate) async fn of_the_server(engine: Engine) {
    let own = Own::start(engine.name(), &[]);
    let admin = App::connect(&own.url, 1).await;
    let mut wrong = Vec::new();
    for setting in settings(engine, &admin, OF_THE_SERVER).await {
        let mut db = Db::on(engine, &own.url).await;
        let before = value(&admin, &setting.name).await;
        admin.execute(&format!("SET GLOBAL {setting}")).await;
        let name = &setting.name;
        let as_before = match name.as_str() {
            "init_connect" => "SET SESSION timestamp = DEFAULT".to_owned(),
            _ => format!("SET SESSION {name} = {before}"),
        };
        db.app = App::prepared(&db.url, 4, &as_before).await;
        let app = db.app.clone();
        let (db, found) = exercise(db, app).await;
        admin
            .execute(&format!("SET GLOBAL {name} = {before}"))
            .await;
        wrong.push((setting, found));
        db.remove().await;
    }
    judge(&wrong);
}

/// The value of a global variable, as SQL.
async fn value(admin: &App, name: &str) -> String {
    let value = format!("SELECT CAST(@@GLOBAL.{name} AS CHAR)");
    let value = sqlx::query_scalar(AssertSqlSafe(value))
        .fetch_one(pool(admin))
        .await;
    let value: String = value.unwrap();
    if value.parse::<u64>().is_ok() {
        value
    } else {
        format!("'{value}'")
    }
}

pub(crate) async fn of_the_application(engine: Engine) {
    let mut wrong = Vec::new();
    let first = Db::new(engine).await;
    for setting in settings(engine, &first.app, OF_THE_APPLICATION).await {
        let db = Db::new(engine).await;
        let app = App::prepared(&db.url, 4, &format!("SET SESSION {setting}")).await;
        let (db, found) = exercise(db, app).await;
        wrong.push((setting, found));
        db.remove().await;
    }
    first.remove().await;
    judge(&wrong);
}
