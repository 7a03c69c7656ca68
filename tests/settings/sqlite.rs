//! The pragmas of SQLite.

use std::sync::Arc;
use std::time::Duration;

use rowlock::{Engine, Rowlock};
use rowlock_test::{App, Db};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use crate::exercise::{exercise, exercise_by};
use crate::{Setting, all, sweep};

/// Those that once broke something.
const PRAGMAS: &[(&str, &str)] = &[("count_changes", "1"), ("query_only", "1")];

/// For the long run.
const MORE: &[(&str, &str)] = &[
    ("full_column_names", "1"),
    ("short_column_names", "0"),
    ("case_sensitive_like", "1"),
    ("reverse_unordered_selects", "1"),
    ("recursive_triggers", "1"),
    ("foreign_keys", "0"),
    ("legacy_alter_table", "1"),
    ("read_uncommitted", "1"),
    ("synchronous", "0"),
    ("synchronous", "3"),
    ("cache_size", "1"),
    ("cache_spill", "0"),
    ("temp_store", "2"),
    ("ignore_check_constraints", "1"),
    ("defer_foreign_keys", "1"),
    ("empty_result_callbacks", "1"),
    ("cell_size_check", "1"),
    ("automatic_index", "0"),
    ("checkpoint_fullfsync", "1"),
    ("fullfsync", "1"),
    ("mmap_size", "1000000"),
    ("secure_delete", "1"),
    ("soft_heap_limit", "1000000"),
    ("threads", "2"),
    ("trusted_schema", "0"),
    ("wal_autocheckpoint", "1"),
    ("busy_timeout", "0"),
    ("analysis_limit", "1"),
    ("journal_size_limit", "0"),
    ("application_id", "1"),
    ("user_version", "1"),
    ("auto_vacuum", "1"),
    ("encoding", "'UTF-16'"),
    ("page_size", "512"),
    ("default_cache_size", "1"),
    ("max_page_count", "100000"),
    ("writable_schema", "1"),
    ("locking_mode", "EXCLUSIVE"),
    ("journal_mode", "DELETE"),
    ("journal_mode", "TRUNCATE"),
    ("journal_mode", "PERSIST"),
];

/// Those that are no setting of a connection: they tell or do something, change the file, or hold for the whole
/// process.
const NOT: &str = "collation_list compile_options data_version database_list foreign_key_check foreign_key_list freelist_count \
    function_list hard_heap_limit incremental_vacuum index_info index_list index_xinfo integrity_check module_list optimize \
    page_count pragma_list quick_check schema_version shrink_memory table_info table_list table_xinfo temp_store_directory wal_checkpoint";

/// In the long run all that SQLite has.
async fn settings(engine: Engine) -> Vec<Setting> {
    let some = PRAGMAS.iter().map(|one| Setting::of(*one));
    if !all() {
        return some.collect();
    }
    let settings: Vec<_> = some
        .chain(MORE.iter().map(|one| Setting::of(*one)))
        .collect();
    let db = Db::new(engine).await;
    let App::Sqlite(pool) = &db.app else {
        unreachable!("it is a pool of SQLite's")
    };
    let names = "SELECT name FROM pragma_pragma_list";
    let names: Vec<String> = sqlx::query_scalar(names).fetch_all(pool).await.unwrap();
    for name in names {
        let is_known = NOT.split_whitespace().any(|not| not == name)
            || settings.iter().any(|setting| setting.name == name);
        assert!(is_known, "PRAGMA {name} is new");
    }
    db.remove().await;
    settings
}

pub(crate) async fn of_the_application(engine: Engine) {
    sweep(settings(engine).await, async || engine, of_an_application).await;
}

async fn of_an_application(engine: Arc<Engine>, setting: Setting) -> Vec<String> {
    let db = Db::new(*engine).await;
    let app = App::prepared(&db.url, 4, &format!("PRAGMA {setting}")).await;
    let (db, found) = exercise(db, app).await;
    db.remove().await;
    found
}

/// rowlock's own connections have the options of the pool, too.
pub(crate) async fn of_the_pool(engine: Engine) {
    sweep(settings(engine).await, async || engine, of_a_pool).await;
}

async fn of_a_pool(engine: Arc<Engine>, setting: Setting) -> Vec<String> {
    let db = Db::new(*engine).await;
    let options: SqliteConnectOptions = db.url.parse().unwrap();
    let options = options.pragma(setting.name, setting.value);
    let pool = SqlitePoolOptions::new().max_connections(4);
    let pool = pool
        .acquire_timeout(Duration::from_mins(5))
        .connect_with(options);
    let pool = pool.await.unwrap();
    let one = Rowlock::from_pool(&pool).await;
    let two = Rowlock::from_pool(&pool).await;
    let (db, found) = exercise_by(db, App::Sqlite(pool), one, two).await;
    db.remove().await;
    found
}
