//! The variables of PostgreSQL.

use std::sync::Arc;

use rowlock::Engine;
use rowlock_test::{App, Db};

use crate::exercise::exercise;
use crate::{Setting, all, sweep};

/// Those that once broke something.
const SETTINGS: &[(&str, &str)] = &[
    ("standard_conforming_strings", "off"),
    ("exit_on_error", "on"),
];

/// More for the long run, besides the server's own list.
const MORE: &[(&str, &str)] = &[
    ("\"DateStyle\"", "'German'"),
    ("\"TimeZone\"", "'Pacific/Auckland'"),
    ("client_encoding", "'LATIN1'"),
    ("search_path", "pg_catalog, public"),
    ("statement_timeout", "'20s'"),
    ("lock_timeout", "'1ms'"),
    ("application_name", "'shop'"),
    ("default_tablespace", "'pg_default'"),
    ("temp_tablespaces", "'pg_default'"),
    ("default_text_search_config", "'pg_catalog.german'"),
    ("lc_messages", "'C'"),
    ("lc_monetary", "'C'"),
    ("lc_numeric", "'C'"),
    ("lc_time", "'C'"),
    ("timezone_abbreviations", "'Australia'"),
    ("restrict_nonsystem_relation_kind", "'view'"),
    ("createrole_self_grant", "'set'"),
];

/// What a user may set, with values that it does not have.
const OTHERS: &str = "
SELECT quote_ident(name), quote_literal(other) FROM pg_settings, LATERAL (
    SELECT CASE setting WHEN 'on' THEN 'off' ELSE 'on' END WHERE vartype = 'bool'
    UNION ALL SELECT word FROM unnest(enumvals) word WHERE word <> setting
    UNION ALL SELECT number FROM unnest(ARRAY[min_val, max_val]) number
        WHERE vartype IN ('integer', 'real') AND number <> setting
) AS others (other)
WHERE context IN ('user', 'superuser') ORDER BY name, other";

const ALL: &str = "SELECT quote_ident(name) FROM pg_settings WHERE context IN ('user', 'superuser') ORDER BY name";

/// The settings to try: in the long run all that a session may have.
async fn settings(engine: Engine) -> Vec<Setting> {
    let mut settings: Vec<_> = SETTINGS.iter().map(|some| Setting::of(*some)).collect();
    if !all() {
        return settings;
    }
    let db = Db::new(engine).await;
    let more = MORE.iter().map(|more| Setting::of(*more));
    let App::Postgres(pool) = &db.app else {
        unreachable!("it is a pool of PostgreSQL's")
    };
    let others: Vec<(String, String)> = sqlx::query_as(OTHERS).fetch_all(pool).await.unwrap();
    let others = others
        .iter()
        .map(|(name, value)| Setting::of((name, value)));
    for setting in more.chain(others) {
        // The server refuses what a database cannot have.
        let alter = format!(
            "ALTER DATABASE {} SET {setting}; ALTER DATABASE {} RESET ALL",
            db.name(),
            db.name()
        );
        match db.try_execute(&alter).await {
            Ok(()) => settings.push(setting),
            Err(error) => println!("not tried: {setting} ({error})"),
        }
    }
    let all: Vec<String> = sqlx::query_scalar(ALL).fetch_all(pool).await.unwrap();
    for name in all {
        if !settings.iter().any(|setting| setting.name == name) {
            println!("not tried: {name}");
        }
    }
    db.remove().await;
    settings
}

pub(crate) async fn of_the_database(engine: Engine) {
    sweep(settings(engine).await, async || (), of_a_database).await;
}

async fn of_a_database(_: Arc<()>, setting: Setting) -> Vec<String> {
    let db = Db::empty(Engine::Postgres).await;
    let alter = format!("ALTER DATABASE {} SET {setting}", db.name());
    db.execute(&alter).await;
    let app = App::connect(&db.url, 4).await;
    let (db, found) = exercise(db, app).await;
    db.remove().await;
    found
}

pub(crate) async fn of_the_application(engine: Engine) {
    // A transaction that only reads can lock nothing.
    let writes = |setting: &Setting| setting.name != "default_transaction_read_only";
    let settings = settings(engine).await.into_iter().filter(writes).collect();
    sweep(settings, async || (), of_an_application).await;
}

async fn of_an_application(_: Arc<()>, setting: Setting) -> Vec<String> {
    let db = Db::new(Engine::Postgres).await;
    let app = App::prepared(&db.url, 4, &format!("SET {setting}")).await;
    let (db, found) = exercise(db, app).await;
    db.remove().await;
    found
}
