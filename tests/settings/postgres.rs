//! The variables of PostgreSQL.

use rowlock::Engine;
use rowlock_test::{App, Db};

use crate::exercise::exercise;
use crate::{Setting, all, judge};

/// Those that once broke something.
const SETTINGS: &[(&str, &str)] = &[
    ("standard_conforming_strings", "off"),
    ("exit_on_error", "on"),
];

/// More for the long run, besides the server's own list.
const MORE: &[(&str, &str)] = &[
    ("DateStyle", "'German'"),
    ("TimeZone", "'Pacific/Auckland'"),
    ("client_encoding", "'LATIN1'"),
    ("search_path", "pg_catalog, public"),
    ("statement_timeout", "'20s'"),
    ("lock_timeout", "'1ms'"),
];

/// What a user may set, with values that it does not have.
const OTHERS: &str = "
SELECT name,  || other ||  FROM pg_settings, LATERAL (
    SELECT CASE setting WHEN 'on' THEN 'off' ELSE 'on' END WHERE vartype = 'bool'
    UNION ALL SELECT word FROM unnest(enumvals) word WHERE word <> setting
    UNION ALL SELECT number FROM unnest(ARRAY[min_val, max_val]) number
        WHERE vartype IN ('integer', 'real') AND number <> setting
) AS others (other)
WHERE context IN ('user', 'superuser') ORDER BY name, other";

/// The settings to try: in the long run all that a session may have.
async fn settings(engine: Engine) -> Vec<Setting> {
    let mut settings: Vec<_> = SETTINGS.iter().map(|some| Setting::of(*some)).collect();
    if !all() {
        return settings;
    }
    settings.extend(MORE.iter().map(|more| Setting::of(*more)));
    let db = Db::new(engine).await;
    let App::Postgres(pool) = &db.app else {
        unreachable!("it is a pool of PostgreSQL's")
    };
    let others: Vec<(String, String)> = sqlx::query_as(OTHERS).fetch_all(pool).await.unwrap();
    settings.extend(
        others
            .iter()
            .map(|(name, value)| Setting::of((name, value))),
    );
    db.remove().await;
    settings
}

pub(crate) async fn of_the_database(engine: Engine) {
    let mut wrong = Vec::new();
    for setting in settings(engine).await {
        let db = Db::empty(engine).await;
        let alter = format!("ALTER DATABASE {} SET {setting}", db.name());
        db.execute(&alter).await;
        let app = App::connect(&db.url, 4).await;
        let (db, found) = exercise(db, app).await;
        wrong.push((setting, found));
        db.remove().await;
    }
    judge(&wrong);
}

pub(crate) async fn of_the_application(engine: Engine) {
    let mut wrong = Vec::new();
    // A transaction that only reads can lock nothing.
    let writes = |setting: &Setting| setting.name != "default_transaction_read_only";
    for setting in settings(engine).await.into_iter().filter(writes) {
        let db = Db::new(engine).await;
        let app = App::prepared(&db.url, 4, &format!("SET {setting}")).await;
        let (db, found) = exercise(db, app).await;
        wrong.push((setting, found));
        db.remove().await;
    }
    judge(&wrong);
}
