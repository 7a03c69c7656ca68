//! Prints the results of `ls`, `show`, `release` and `migrate`: a table for people, JSON for programs.

use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::{Table, presets};
use rowlock::{LockInfo, Name};
use serde::Serialize;

/// A lock in JSON: times are RFC 3339, in UTC.
#[derive(Debug, Serialize)]
struct Json<'a> {
    name: &'a str,
    grant_id: String,
    fence: i64,
    holder: &'a str,
    acquired_at: String,
    expires_at: String,
}

impl<'a> From<&'a LockInfo> for Json<'a> {
    fn from(lock: &'a LockInfo) -> Self {
        let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Micros, true);
        Self {
            name: lock.name.as_str(),
            grant_id: lock.grant_id.to_string(),
            fence: lock.fence,
            holder: &lock.holder,
            acquired_at: time(lock.acquired_at),
            expires_at: time(lock.expires_at),
        }
    }
}

pub(crate) fn print_json(value: &impl Serialize) {
    // Strings and numbers only: serialising cannot fail.
    println!(
        "{}",
        serde_json::to_string_pretty(value).unwrap_or_default()
    );
}

fn table(locks: &[LockInfo]) -> Table {
    let time = |at: DateTime<Utc>| at.format("%F %T UTC").to_string();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "NAME",
        "HOLDER",
        "FENCE",
        "SINCE",
        "UNTIL (RENEWED)",
    ]);
    for lock in locks {
        table.add_row([
            // A name may contain control characters, which a terminal would obey.
            lock.name.as_str().escape_debug().to_string(),
            lock.holder.escape_debug().to_string(),
            lock.fence.to_string(),
            time(lock.acquired_at),
            time(lock.expires_at),
        ]);
    }
    table
}

pub(crate) fn print_list(locks: &[LockInfo], json: bool) {
    if json {
        print_json(&locks.iter().map(Json::from).collect::<Vec<_>>());
    } else if locks.is_empty() {
        println!("nobody holds a lock");
    } else {
        println!("{}", table(locks));
    }
}

pub(crate) fn print_one(name: &Name, lock: Option<&LockInfo>, json: bool) {
    match lock {
        _ if json => print_json(&lock.map(Json::from)),
        Some(lock) => println!("{}", table(std::slice::from_ref(lock))),
        None => println!("nobody holds {name:?}"),
    }
}

pub(crate) fn print_released(name: &Name, held: Option<&LockInfo>) {
    match held {
        Some(held) => println!(
            "released {name:?}: {} held it since {}, with fence {}; the holder learns of its loss \
             at its next renewal",
            held.holder.escape_debug(),
            held.acquired_at.format("%F %T UTC"),
            held.fence,
        ),
        None => println!("nobody held {name:?}"),
    }
}

pub(crate) fn print_repaired(name: &Name) {
    println!("released {name:?}: its row was damaged, so its holder is not known");
}

pub(crate) fn print_migrations(target: &str, applied: &[String]) {
    if applied.is_empty() {
        println!("{target}: the tables are up to date");
    }
    for migration in applied {
        println!("{target}: applied {migration}");
    }
}
