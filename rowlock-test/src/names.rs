//! Names of databases.

use std::sync::atomic::{AtomicU32, Ordering};

use rowlock::Engine;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A name for a user of a server that nobody else has, short enough for all of them.
pub fn user_name(prefix: &str) -> String {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}_{}_{count}", std::process::id())
}

/// The name of a new database. It tells its process and its test, so that somebody who finds a database knows which
/// test left it.
pub(crate) fn database_name() -> String {
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let thread = std::thread::current();
    // The thread of a test has the test's name.
    let path = thread.name().unwrap_or_default().rsplit("::");
    // In `histories::postgres` the engine is last.
    let test = path.clone().find(|part| part.parse::<Engine>().is_err());
    let mut name = format!("rl_{}_{count}_", std::process::id());
    let letters = test.unwrap_or_default().chars();
    name.extend(letters.map(|c| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '_'
        }
    }));
    // PostgreSQL and MySQL allow 63 and 64 bytes. Some tests add a suffix.
    name.truncate(50);
    name
}
