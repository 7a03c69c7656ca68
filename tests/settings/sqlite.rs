//! The pragmas of SQLite.

use rowlock::Engine;
use rowlock_test::{App, Db};

use crate::exercise::exercise;
use crate::{Setting, all, judge};

/// Those that once broke something.
const PRAGMAS: &[(&str, &str)] = &[("count_changes", "1")];

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
];

pub(crate) async fn of_the_application(engine: Engine) {
    let mut wrong = Vec::new();
    let more = if all() { MORE } else { &[] };
    for setting in PRAGMAS.iter().chain(more).map(|one| Setting::of(*one)) {
        let db = Db::new(engine).await;
        let app = App::prepared(&db.url, 4, &format!("PRAGMA {setting}")).await;
        let (db, found) = exercise(db, app).await;
        wrong.push((setting, found));
        db.remove().await;
    }
    judge(&wrong);
}
