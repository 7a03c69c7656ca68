//! Every verb, under what a server, an account or an application may have set.
//!
//! Once as the default of the server or of the database, which rowlock's own connections inherit, and once in the
//! application's sessions, whose transactions rowlock takes part in. [`exercise`] calls the verbs: those on rowlock's
//! own connections ([`alone`]) and those in the application's transactions ([`in_tx`]). With `ROWLOCK_ALL_SETTINGS=1`
//! the values come from the server's own list of its variables; otherwise they are those that once made a difference.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod alone;
mod exercise;
mod in_tx;
mod mysql;
mod postgres;
mod sqlite;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use libtest_mimic::Arguments;
use rowlock::Engine;
use rowlock_test::{list_trial, patience};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

/// A variable and its value, as SQL.
#[derive(Debug, Clone)]
struct Setting {
    name: String,
    value: String,
}

impl Setting {
    fn of((name, value): (&str, &str)) -> Self {
        let (name, value) = (name.to_owned(), value.to_owned());
        Self { name, value }
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}", self.name, self.value)
    }
}

/// Whether to try all variables of the server.
fn all() -> bool {
    std::env::var("ROWLOCK_ALL_SETTINGS").is_ok_and(|all| all == "1")
}

const READS: &str = "a transaction that only reads can lock nothing: the error says so";

const ALONE: &str = "one connection of the application's keeps the file for itself, also from its other connections";

const REFUSED: &str =
    "the application allows its session nearly no statement: the error names the variable";

/// What may go wrong: the variable, the text that tells it, and why.
const FORGIVEN: &[(&str, &str, &str)] = &[
    (
        "sql_select_limit",
        "stripes: the rows of \"stock\" do not fit",
        "the application's own SELECT of its stripes is cut",
    ),
    (
        "default_transaction_read_only",
        "connect: ",
        "a database in maintenance: the error says that it takes no writes",
    ),
    (
        "search_path",
        "connect: ",
        "the first schema is the server's own: the error says that no table can be made in it",
    ),
    ("tx_read_only", "READ ONLY", READS),
    ("transaction_read_only", "READ ONLY", READS),
    ("query_only", "readonly database", READS),
    (
        "locking_mode",
        "locking_mode = EXCLUSIVE",
        "the error names it",
    ),
    ("locking_mode", "database is locked", ALONE),
    ("locking_mode", "Elapsed", ALONE),
    ("max_join_size", "MAX_JOIN_SIZE", REFUSED),
    ("max_session_mem_used", "max-session-mem-used", REFUSED),
    ("require_row_format", "require_row_format", REFUSED),
    (
        "max_execution_time",
        "maximum statement execution time exceeded",
        "the application's own limit, of 1 or 2 ms: the error says so",
    ),
];

/// How many settings of the long run are tried at the same time.
const AT_ONCE: usize = 4;

/// Tries each setting, each with a patience of its own. Fails if something went wrong that need not. Those that are
/// tried at the same time have a `place` each, where `run` tries them one after the other.
async fn sweep<P: Send + Sync + 'static, F: Future<Output = Vec<String>> + Send + 'static>(
    settings: Vec<Setting>,
    place: impl AsyncFn() -> P,
    run: fn(Arc<P>, Setting) -> F,
) {
    let count = settings.len();
    let names: BTreeSet<_> = settings.iter().map(|one| one.name.clone()).collect();
    let settings = Arc::new(Mutex::new(settings.into_iter()));
    let mut workers = JoinSet::new();
    for _ in 0..if all() { AT_ONCE } else { 1 } {
        let (settings, place) = (Arc::clone(&settings), Arc::new(place().await));
        workers.spawn(async move {
            let mut wrong = 0;
            loop {
                let next = settings.lock().unwrap().next();
                let Some(setting) = next else { return wrong };
                let run = run(Arc::clone(&place), setting.clone());
                let found = match tokio::spawn(timeout(5 * patience(), run)).await {
                    Ok(Ok(found)) => found,
                    Ok(Err(_)) => vec![String::from("it does not end")],
                    Err(panic) => vec![said(panic)],
                };
                wrong += judge(&setting, &found);
            }
        });
    }
    let wrong: usize = workers.join_all().await.into_iter().sum();
    println!("{count} values of {} variables", names.len());
    assert_eq!(wrong, 0, "verbs depend on settings");
}

/// Tells what went wrong, and how much of it need not.
fn judge(setting: &Setting, found: &[String]) -> usize {
    let mut wrong = 0;
    for step in found {
        let forgiven = FORGIVEN
            .iter()
            .find(|(name, of, _)| setting.name == *name && step.contains(of));
        let why = forgiven.map_or(String::new(), |(_, _, why)| format!(" ({why})"));
        println!("{setting}: {step}{why}");
        wrong += usize::from(forgiven.is_none());
    }
    wrong
}

/// What a panic said.
fn said(panic: JoinError) -> String {
    let panic = panic.into_panic();
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    text.unwrap_or_default()
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for engine in [Engine::MariaDb, Engine::MySql] {
        trials.push(list_trial("of_the_server", engine, mysql::of_the_server));
        trials.push(list_trial(
            "of_the_application",
            engine,
            mysql::of_the_application,
        ));
    }
    let postgres = Engine::Postgres;
    trials.push(list_trial(
        "of_the_database",
        postgres,
        postgres::of_the_database,
    ));
    trials.push(list_trial(
        "of_the_application",
        postgres,
        postgres::of_the_application,
    ));
    trials.push(list_trial(
        "of_the_application",
        Engine::Sqlite,
        sqlite::of_the_application,
    ));
    trials.push(list_trial(
        "of_the_pool",
        Engine::Sqlite,
        sqlite::of_the_pool,
    ));
    libtest_mimic::run(&arguments, trials).exit_code()
}
