//! The variables of MySQL and MariaDB.

use std::sync::Arc;

use rowlock::Engine;
use rowlock_test::{App, Db, Own, as_user};
use sqlx::{AssertSqlSafe, MySqlPool};

use crate::exercise::exercise;
use crate::{Setting, all, sweep};

/// Those that once broke something, as the server's default.
const OF_THE_SERVER: &[(&str, &str)] = &[
    ("completion_type", "1"),
    ("completion_type", "2"),
    ("sql_select_limit", "1"),
    ("sql_safe_updates", "1"),
    ("group_concat_max_len", "4"),
    ("transaction_read_only", "1"),
    ("max_join_size", "1"),
    ("sort_buffer_size", "1"),
    ("tmp_table_size", "1"),
    ("init_connect", "'SET timestamp = 1000000000'"),
];

/// And in the application's sessions.
const OF_THE_APPLICATION: &[(&str, &str)] = &[
    ("timestamp", "1000000000"),
    ("timestamp", "2000000000"),
    ("sql_select_limit", "1"),
    ("sql_select_limit", "0"),
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
    ("character_set_results", "latin1"),
    ("collation_connection", "utf8mb4_bin"),
    ("default_collation_for_utf8mb4", "utf8mb4_general_ci"),
    ("default_storage_engine", "MyISAM"),
    ("default_tmp_storage_engine", "MyISAM"),
    ("session_track_system_variables", "'*'"),
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
fn some_settings(engine: Engine, some: &[(&str, &str)]) -> Vec<Setting> {
    some.iter().map(|some| here(engine, *some)).collect()
}

async fn settings(engine: Engine, admin: &App, some: &[(&str, &str)]) -> Vec<Setting> {
    let mut settings = some_settings(engine, some);
    if !all() {
        return settings;
    }
    for more in MORE {
        let setting = here(engine, *more);
        match try_once(admin, &format!("SET SESSION {setting}")).await {
            Ok(()) => settings.push(setting),
            Err(error) => println!("not tried: {setting} ({error})"),
        }
    }
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
        let mut refused = String::new();
        let before = settings.len();
        for other in others {
            let setting = Setting::of((&name, other));
            let set = format!("SET SESSION {setting}");
            match try_once(admin, &set).await {
                Ok(()) => settings.push(setting),
                Err(error) => refused = error.to_string(),
            }
        }
        let is_tried =
            settings.len() > before || settings.iter().any(|setting| setting.name == name);
        // Some are the server's, or only to be read.
        let is_of_sessions = !refused.contains("GLOBAL") && !refused.contains("read only");
        if !is_tried && is_of_sessions {
            println!("not tried: {name} = {is} ({refused})");
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

/// A server, and a connection that may change its settings: always the same, since a new one would have them, too.
#[derive(Debug)]
struct Server {
    engine: Engine,
    own: Own,
    admin: App,
}

impl Server {
    async fn start(engine: Engine) -> Self {
        let own = Own::start(engine.name(), &[]);
        let admin = App::connect(&own.url, 1).await;
        // No server runs `init_connect` for an administrator.
        let plain = "CREATE USER plain@'127.0.0.1' IDENTIFIED BY 'pw'; \
                     GRANT ALL ON app.* TO plain@'127.0.0.1'; GRANT ALL ON `rl\\_%`.* TO plain@'127.0.0.1'";
        admin.execute(plain).await;
        Self { engine, own, admin }
    }

    /// Makes it the default of all sessions to come. Returns the SQL that ends that, and the SQL with which a session
    /// has the value from before. `None`: no default can have it.
    async fn set(&self, setting: &Setting) -> Option<[String; 2]> {
        let name = &setting.name;
        // A session cannot have another value than the default, except 0.
        if name.ends_with("delayed_threads") {
            return None;
        }
        if let Some(before) = value(&self.admin, &format!("@@GLOBAL.{name}")).await {
            let mut as_before = format!("SET SESSION {name} = {before}");
            if try_execute(&self.admin, &as_before).await.is_err() {
                as_before = String::from("SELECT 1");
            }
            let set = format!("SET GLOBAL {setting}");
            if try_execute(&self.admin, &set).await.is_ok() {
                return Some([format!("SET GLOBAL {name} = {before}"), as_before]);
            }
        }
        // Sessions alone have it.
        let set = format!("SET SESSION {setting}");
        let plain = App::connect(&as_user(&self.own.url, "plain", "pw"), 1).await;
        let may_set = try_once(&plain, &set).await;
        plain.close().await;
        may_set.ok()?;
        let quoted = set.replace('\'', "''");
        let init = format!("SET GLOBAL init_connect = '{quoted}'");
        self.admin.execute(&init).await;
        Some(["SET GLOBAL init_connect = ''", "SELECT 1"].map(String::from))
    }
}

async fn try_execute(app: &App, sql: &str) -> Result<(), sqlx::Error> {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    sql.execute(pool(app)).await.map(|_| ())
}

/// Runs it on a connection that nobody uses any more.
async fn try_once(app: &App, sql: &str) -> Result<(), sqlx::Error> {
    let mut one = pool(app).acquire().await?;
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(&mut *one)
        .await;
    one.close().await?;
    done.map(|_| ())
}

/// The value of a variable, as SQL. `None` if there is none.
async fn value(admin: &App, variable: &str) -> Option<String> {
    let value = format!("SELECT CAST({variable} AS CHAR)");
    let value = sqlx::query_scalar(AssertSqlSafe(value))
        .fetch_one(pool(admin))
        .await;
    let value: String = value.ok()?;
    if value.parse::<f64>().is_ok() {
        Some(value)
    } else {
        Some(format!("'{value}'"))
    }
}

/// The application's sessions have the value that the server had before.
pub(crate) async fn of_the_server(engine: Engine) {
    let settings = if all() {
        let server = Server::start(engine).await;
        settings(engine, &server.admin, OF_THE_SERVER).await
    } else {
        some_settings(engine, OF_THE_SERVER)
    };
    sweep(settings, async || Server::start(engine).await, of_a_server).await;
}

async fn of_a_server(server: Arc<Server>, setting: Setting) -> Vec<String> {
    let mut db = Db::on(server.engine, &server.own.url).await;
    let Some([end, as_before]) = server.set(&setting).await else {
        println!("not tried: no default can be {setting}");
        db.remove().await;
        return Vec::new();
    };
    db.app = App::prepared(&db.url, 4, &as_before).await;
    db.url = as_user(&db.url, "plain", "pw");
    let app = db.app.clone();
    let (db, found) = exercise(db, app).await;
    server.admin.execute(&end).await;
    db.remove().await;
    found
}

pub(crate) async fn of_the_application(engine: Engine) {
    let first = Db::new(engine).await;
    let settings = settings(engine, &first.app, OF_THE_APPLICATION).await;
    first.remove().await;
    sweep(settings, async || engine, of_an_application).await;
}

async fn of_an_application(engine: Arc<Engine>, setting: Setting) -> Vec<String> {
    let db = Db::new(*engine).await;
    let app = App::prepared(&db.url, 4, &format!("SET SESSION {setting}")).await;
    let (db, found) = exercise(db, app).await;
    db.remove().await;
    found
}
