//! Keeps the house tidy: what stands where (ARCHITECTURE.md, "Where a line of code belongs").
#![allow(missing_docs, reason = "tests are named, not documented")]

mod api;
mod imports;
mod names;
mod sql;
mod suite;
mod words;

use std::path::{Path, PathBuf};

fn files(below: &str) -> Vec<(PathBuf, String)> {
    fn collect(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    collect(&root.join(below), &mut found);
    assert!(!found.is_empty(), "nothing below {below}");
    for (path, _) in &mut found {
        *path = path.strip_prefix(root).unwrap().to_owned();
    }
    found
}

/// The code of all packages of the workspace.
const ALL: [&str; 12] = [
    "src",
    "rowlock-http/src",
    "rowlock-macros/src",
    "rowlock-recipes/src",
    "rowlock-cli/src",
    "rowlock-console/src",
    "rowlock-test/src",
    "benches/src",
    "examples/flash_sale/src",
    "examples/inbox/src",
    "examples/payments/src",
    "examples/web_sessions/src",
];

/// The code of the packages that are published.
const PUBLISHED: [&str; 6] = [
    "src",
    "rowlock-http/src",
    "rowlock-macros/src",
    "rowlock-recipes/src",
    "rowlock-cli/src",
    "rowlock-console/src",
];

/// All their tests.
const TESTS: [&str; 10] = [
    "tests",
    "rowlock-http/tests",
    "rowlock-macros/tests",
    "rowlock-cli/tests",
    "rowlock-console/tests",
    "benches/tests",
    "examples/flash_sale/tests",
    "examples/inbox/tests",
    "examples/payments/tests",
    "examples/web_sessions/tests",
];

/// Every line below `folders` that has one of `words` in it, outside the rooms where it may stand.
fn outside(folders: &[&str], rooms: &[&str], words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in folders.iter().flat_map(|below| files(below)) {
        if rooms.iter().any(|room| path.starts_with(room)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if words.iter().any(|word| code.contains(word)) {
                found.push(format!(
                    "{}:{}: {}",
                    path.display(),
                    number + 1,
                    line.trim()
                ));
            }
        }
    }
    found
}

/// The floors, from the ground up. A room imports from lower floors only: neither from above nor from the room beside
/// it.
const FLOORS: [&[&str]; 8] = [
    &["model"],
    &["store"],
    &["runtime"],
    &["transaction"],
    &["lock", "idempotency"],
    &["client"],
    &["attributes"],
    &["testing"],
];

/// The number of a room's floor.
fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// The code of a file, without comments, and without the tests at its end: they may use everything.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate();
    let tests = |line: &str| line.trim() == "mod tests {";
    let code = lines.take_while(move |(_, line)| !tests(line));
    code.map(|(number, line)| (number + 1, line.split("//").next().unwrap_or_default()))
}

#[test]
fn every_import_points_down() {
    let mut wrong = Vec::new();
    for (path, text) in files("src") {
        let mut parts = path.components().skip(1);
        let room = parts.next().unwrap().as_os_str().to_str().unwrap();
        let room = room.trim_end_matches(".rs");
        let is_of_tests = path.to_str().unwrap().contains("tests");
        if room == "lib" || is_of_tests {
            continue;
        }
        let own = floor(room).unwrap_or_else(|| panic!("{room} has no floor"));
        for (number, line) in code(&text) {
            for import in line.split("crate::").skip(1) {
                let word = |c: char| c.is_alphanumeric() || c == '_';
                let other = import.split(|c| !word(c)).next().unwrap_or_default();
                // A name that is no room comes from `lib.rs`.
                let is_below = floor(other).is_some_and(|other| other < own);
                if other != room && !is_below {
                    wrong.push(format!("{}:{number}: {}", path.display(), line.trim()));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn tasks_and_timers_stand_only_in_the_runtime() {
    let words = [
        "tokio::spawn",
        "thread::spawn",
        "time::sleep",
        "thread::sleep",
        "spawn_local",
    ];
    assert_eq!(
        outside(&["src"], &["src/runtime", "src/store/tests"], &words),
        Vec::<String>::new()
    );
}

/// What the attributes stand for could stand outside of this crate.
#[test]
fn attributes_use_only_what_every_user_can_use() {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let lib = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs"));
    let lib = lib.unwrap();
    let exports = lib.split("pub use ").skip(1);
    let exports = exports.filter_map(|export| export.split(';').next());
    let public: Vec<&str> = exports
        .flat_map(|export| export.split(|c| !word(c)))
        .collect();
    let mut wrong = Vec::new();
    for (path, text) in files("src/attributes") {
        let code: Vec<&str> = code(&text).map(|(_, line)| line).collect();
        let code = code.join(" ");
        for import in code.split("crate::").skip(1) {
            let end = import.find(';').unwrap_or(import.len());
            let (room, names) = import[..end].split_once("::").unwrap_or(("", ""));
            let names = names.split(|c| !word(c)).filter(|name| !name.is_empty());
            let hidden = names.filter(|name| !public.contains(name));
            if room != "attributes" {
                wrong.extend(hidden.map(|name| format!("{}: {room}::{name}", path.display())));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn no_clock_of_the_application_decides() {
    // A provider signs a time, a server tells when to come back, and `rowlock check` compares the clocks.
    let told = [
        "examples/inbox/src/signature.rs",
        "examples/inbox/src/webhook.rs",
        "rowlock-http/src/client.rs",
        "rowlock-cli/src/check.rs",
    ];
    assert_eq!(
        outside(&ALL, &told, &["SystemTime", "Utc::now", "Local::now"]),
        Vec::<String>::new()
    );
    // SQLite's clock is this host's: the fence of a transaction reads it in microseconds.
    assert_eq!(
        outside(&ALL, &["src/store/sqlite/in_tx.rs"], &["UtcDateTime"]),
        Vec::<String>::new()
    );
}

/// The folders of the engines.
fn engines() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let folders = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut names: Vec<_> = folders
        .map(|folder| folder.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The other rooms ask questions that have names (`src/store/driver/capabilities.rs`).
#[test]
fn no_room_but_the_store_asks_which_engine_it_is() {
    let mut words = ["engine ==", "match engine", "match self.core.engine"]
        .map(str::to_owned)
        .to_vec();
    words.extend(engines().iter().map(|engine| format!("store::{engine}")));
    words.extend(('A'..='Z').map(|initial| format!("Engine::{initial}")));
    let mut found = Vec::new();
    for (path, text) in files("src") {
        let may = ["src/store", "src/model"];
        let is_of_tests = path.to_str().unwrap().contains("tests");
        if is_of_tests || may.iter().any(|room| path.starts_with(room)) {
            continue;
        }
        for (number, line) in code(&text) {
            if words.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn engines_have_the_same_files() {
    let names = |engine: &str| {
        let mut names: Vec<_> = files(&format!("src/store/{engine}"))
            .into_iter()
            .map(|(path, _)| path.file_name().unwrap().to_owned())
            .collect();
        // Only PostgreSQL's clients meet a pooler: they look at a new connection, and have a kind of connection that
        // knows of it. Only PostgreSQL tells news, and has row level security. Its waits in a caller's transaction are
        // long. It has functions for permits; the others have long texts for them. An exchange is a statement of its
        // own where that is quicker, and elsewhere shares texts with leases. Only SQLite has a file, which may have
        // two names. On MySQL and MariaDB a claim is a text of four statements. Tests may stand in a file of their
        // own.
        names.retain(|name| {
            let own = [
                "exchange.rs",
                "file.rs",
                "lease_text.rs",
                "listener.rs",
                "look.rs",
                "own_connection.rs",
                "pooler.rs",
                "record_claim.rs",
                "record_end.rs",
                "record_exchange.rs",
                "record_probe.rs",
                "permit_reclaim.rs",
                "permit_row.rs",
                "permit_text.rs",
                "row_security.rs",
                "file_connection.rs",
                "journal.rs",
                "row_wait.rs",
                "functions.rs",
                "statement.rs",
                "tx_wait.rs",
                "waiter.rs",
                "writing.rs",
            ]
            .iter()
            .any(|own| name == *own);
            !own && !name.to_string_lossy().ends_with("_tests.rs")
        });
        names.sort();
        names
    };
    let migrations = |engine: &str| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("migrations")
            .join(engine);
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let engines = engines();
    assert!(engines.len() >= 3, "{engines:?}");
    for engine in &engines {
        assert_eq!(names("postgres"), names(engine));
        assert_eq!(migrations("postgres"), migrations(engine));
    }
    let embedded = std::fs::read_to_string("src/store/driver/migrate.rs").unwrap();
    for file in migrations("postgres") {
        let name = file.to_str().unwrap().trim_end_matches(".sql");
        assert!(
            embedded.contains(&format!("\"{name}\"")),
            "{name} is never applied"
        );
    }
}

/// With a pooler, statements must have no names: see `src/store/postgres/pooler.rs`.
#[test]
fn the_statements_of_postgres_are_made_where_their_names_are_decided() {
    for (path, text) in files("src/store/postgres") {
        if path.ends_with("mod.rs") || path.ends_with("pooler.rs") {
            continue;
        }
        for word in ["sqlx::query(", "sqlx::query_as(", "sqlx::query_scalar("] {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}

/// The most lines that a file may have.
const LINES: usize = 400;

#[test]
fn no_file_has_two_reasons_to_change() {
    for (path, text) in ALL.iter().chain(&TESTS).flat_map(|below| files(below)) {
        let lines = text.lines().count();
        assert!(
            lines <= LINES,
            "{} has {lines} lines: which two things is it?",
            path.display()
        );
    }
}

/// Other packages use only what every user can use.
#[test]
fn nothing_public_is_hidden() {
    assert_eq!(
        outside(&PUBLISHED, &[], &["doc(hidden)"]),
        Vec::<String>::new()
    );
}

/// A package that has no list here would not be looked at.
#[test]
fn every_package_is_kept_tidy() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let members = manifest.split("members = [").nth(1).unwrap();
    let members = members.split(']').next().unwrap();
    let members: Vec<_> = members.split('"').skip(1).step_by(2).collect();
    assert_eq!(members.len() + 1, ALL.len(), "{members:?}");
    for member in members {
        let code = format!("{member}/src");
        assert!(ALL.contains(&code.as_str()), "{code}");
        let tests = format!("{member}/tests");
        let has_tests = Path::new(env!("CARGO_MANIFEST_DIR")).join(&tests).exists();
        assert!(!has_tests || TESTS.contains(&tests.as_str()), "{tests}");
    }
}
