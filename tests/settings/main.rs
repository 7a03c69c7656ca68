//! Every verb, under what a server, an account or an application may have set: each session variable with a value that is not its default.
//!
//! Once as the default of the server or of the database, which rowlock's own connections inherit, and once in the application's sessions, whose
//! transactions rowlock takes part in. [`exercise`] calls the verbs: those on rowlock's own connections ([`alone`]) and those in
//! the application's transactions ([`in_tx`]). With `ROWLOCK_ALL_SETTINGS=1` the values come from the server's own list of its
//! variables; otherwise they are those that once made a difference.
#![allow(missing_docs, reason = "tests are named, not documented")]

mod alone;
mod exercise;
mod in_tx;
mod mysql;
mod postgres;
mod sqlite;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use rowlock::Engine;
use rowlock_test::trial;

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

/// What must go wrong: the variable, the step, and why.
const MUST: &[(&str, &str, &str)] = &[
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
];

/// Fails if something went wrong that need not.
fn judge(wrong: &[(Setting, Vec<String>)]) {
    let mut count = 0;
    for (setting, steps) in wrong {
        let must = |step: &String| {
            let is_it = |(name, of, _): &&(&str, &str, &str)| {
                setting.name == *name && step.starts_with(*of)
            };
            MUST.iter().any(|must| is_it(&must))
        };
        for step in steps.iter().filter(|step| !must(step)) {
            println!("{setting}: {step}");
            count += 1;
        }
    }
    assert_eq!(count, 0, "verbs depend on settings");
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for engine in [Engine::MariaDb, Engine::MySql] {
        trials.push(trial("of_the_server", engine, mysql::of_the_server));
        trials.push(trial(
            "of_the_application",
            engine,
            mysql::of_the_application,
        ));
    }
    let postgres = Engine::Postgres;
    trials.push(trial(
        "of_the_database",
        postgres,
        postgres::of_the_database,
    ));
    trials.push(trial(
        "of_the_application",
        postgres,
        postgres::of_the_application,
    ));
    trials.push(trial(
        "of_the_application",
        Engine::Sqlite,
        sqlite::of_the_application,
    ));
    libtest_mimic::run(&arguments, trials).exit_code()
}
