//! Prints the results of `ls`, `sessions`, `show`, `release`, `set-capacity` and `migrate`: a table for people, JSON
//! for programs.

use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::{Table, presets};
use rowlock::{Kind, LockInfo, Mode, Name, NameInfo, PauseInfo, Rowlock, SessionInfo, WaiterInfo};
use serde::Serialize;

use crate::duration::about;
use crate::out::{print, print_json, say};
use crate::{ABSENT, Failure, database, pause, quarantine};

/// A grant in JSON: times are RFC 3339, in UTC.
#[derive(Debug, Serialize)]
struct JsonHolder<'a> {
    /// `lock`, `read`, `write` or `permit`.
    mode: &'static str,
    /// `null`: it is no permit of a semaphore.
    weight: Option<u32>,
    /// That of the semaphore when the permit was granted. `null`: it is no permit of a semaphore.
    capacity: Option<u32>,
    grant_id: String,
    fence: i64,
    holder: &'a str,
    acquired_at: String,
    expires_at: String,
    /// `null`: the lock has a lease of its own.
    session: Option<String>,
}

/// A name in the JSON of `ls` and `show`: with all its holders, and its waiters in their order.
#[derive(Debug, Serialize)]
pub(crate) struct JsonListed<'a> {
    name: &'a str,
    /// `lock`, `rw_lock` or `semaphore`. `null`: the name has no row.
    kind: Option<&'static str>,
    holders: Vec<JsonHolder<'a>>,
    waiters: Vec<JsonWaiter<'a>>,
    /// `null`: it is not paused.
    pause: Option<JsonPause<'a>>,
}

/// A pause in JSON.
#[derive(Debug, Serialize)]
struct JsonPause<'a> {
    by: &'a str,
    why: &'a str,
    /// `null`: until it is resumed.
    until: Option<String>,
}

impl<'a> From<&'a PauseInfo> for JsonPause<'a> {
    fn from(pause: &'a PauseInfo) -> Self {
        Self {
            by: &pause.by,
            why: &pause.why,
            until: pause.until.map(rfc3339),
        }
    }
}

/// A waiter in JSON.
#[derive(Debug, Serialize)]
struct JsonWaiter<'a> {
    position: i64,
    holder: &'a str,
    session: String,
    joined_at: String,
    waited_seconds: f64,
}

impl<'a> From<&'a WaiterInfo> for JsonWaiter<'a> {
    fn from(waiter: &'a WaiterInfo) -> Self {
        Self {
            position: waiter.position,
            holder: &waiter.holder,
            session: waiter.session.to_string(),
            joined_at: rfc3339(waiter.joined_at),
            waited_seconds: waiter.waited.as_secs_f64(),
        }
    }
}

/// A session in JSON.
#[derive(Debug, Serialize)]
struct JsonSession<'a> {
    id: String,
    holder: &'a str,
    opened_at: String,
    expires_at: String,
    locks: u64,
}

impl<'a> From<&'a SessionInfo> for JsonSession<'a> {
    fn from(session: &'a SessionInfo) -> Self {
        Self {
            id: session.id.to_string(),
            holder: &session.holder,
            opened_at: rfc3339(session.opened_at),
            expires_at: rfc3339(session.expires_at),
            locks: session.locks,
        }
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Lock => "lock",
        Mode::Read => "read",
        Mode::Write => "write",
        Mode::Permit { .. } => "permit",
        _ => "unknown",
    }
}

pub(crate) fn rfc3339(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

pub(crate) fn for_people(at: DateTime<Utc>) -> String {
    at.format("%F %T UTC").to_string()
}

impl<'a> From<&'a LockInfo> for JsonHolder<'a> {
    fn from(held: &'a LockInfo) -> Self {
        let (weight, capacity) = match held.mode {
            Mode::Permit {
                weight, capacity, ..
            } => (Some(weight), Some(capacity)),
            _ => (None, None),
        };
        Self {
            mode: mode(held.mode),
            weight,
            capacity,
            grant_id: held.grant_id.to_string(),
            fence: held.fence,
            holder: &held.holder,
            acquired_at: rfc3339(held.acquired_at),
            expires_at: rfc3339(held.expires_at),
            session: held.session.map(|id| id.to_string()),
        }
    }
}

fn kind(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Lock => Some("lock"),
        Kind::ReadWrite => Some("rw_lock"),
        Kind::Semaphore { .. } => Some("semaphore"),
        _ => None,
    }
}

/// The objects of names. The waiters are sorted by name, too.
pub(crate) fn listed<'a>(names: &'a [NameInfo], waiters: &'a [WaiterInfo]) -> Vec<JsonListed<'a>> {
    let of = |name: &'a Name| waiters.iter().filter(move |waiter| waiter.name == *name);
    let listed = names.iter().map(|info| JsonListed {
        name: info.name.as_str(),
        kind: kind(info.kind),
        holders: info.holders.iter().map(Into::into).collect(),
        waiters: of(&info.name).map(Into::into).collect(),
        pause: info.pause.as_ref().map(Into::into),
    });
    listed.collect()
}

fn table(locks: &[LockInfo]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "NAME",
        "MODE",
        "HOLDER",
        "FENCE",
        "SINCE",
        "UNTIL (RENEWED)",
        "IN SESSION",
    ]);
    for lock in locks {
        table.add_row([
            // A name may contain control characters, which a terminal would obey.
            lock.name.as_str().escape_debug().to_string(),
            lock.mode.to_string(),
            lock.holder.escape_debug().to_string(),
            lock.fence.to_string(),
            for_people(lock.acquired_at),
            for_people(lock.expires_at),
            lock.session.map(|id| id.to_string()).unwrap_or_default(),
        ]);
    }
    table
}

/// An array that is printed piece by piece.
#[derive(Debug, Default)]
pub(crate) struct JsonArray {
    is_begun: bool,
}

impl JsonArray {
    pub(crate) fn print(&mut self, values: &[impl Serialize]) -> Result<(), Failure> {
        for value in values {
            let begin = if self.is_begun { "," } else { "[" };
            self.is_begun = true;
            // Strings and numbers only: serialising cannot fail.
            let text = serde_json::to_string_pretty(value).unwrap_or_default();
            print(format_args!("{begin}\n  {}", text.replace('\n', "\n  ")))?;
        }
        Ok(())
    }

    pub(crate) fn end(&self) -> Result<(), Failure> {
        say!("{}", if self.is_begun { "\n]" } else { "[]" })
    }
}

/// For people: the holders, and then the queues. A name may have waiters and no holder. `none` stands for an empty
/// table of holders.
pub(crate) fn print_tables(
    none: &str,
    held: &[LockInfo],
    waiters: &[WaiterInfo],
) -> Result<(), Failure> {
    if held.is_empty() {
        say!("{none}")?;
    } else {
        say!("{}", table(held))?;
    }
    if waiters.is_empty() {
        return Ok(());
    }
    say!("\n{}", queue_table(waiters))
}

/// The waiters, those of one lock in their order.
fn queue_table(waiters: &[WaiterInfo]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "WAITING FOR",
        "PLACE",
        "WAITER",
        "SINCE",
        "FOR",
        "IN SESSION",
    ]);
    let mut place = 0;
    let mut last = None;
    for waiter in waiters {
        place = if last == Some(&waiter.name) {
            place + 1
        } else {
            1
        };
        last = Some(&waiter.name);
        table.add_row([
            waiter.name.as_str().escape_debug().to_string(),
            place.to_string(),
            waiter.holder.escape_debug().to_string(),
            for_people(waiter.joined_at),
            about(waiter.waited),
            waiter.session.to_string(),
        ]);
    }
    table
}

/// `none`: what is printed when there are none.
pub(crate) fn print_sessions(
    sessions: &[SessionInfo],
    json: bool,
    none: &str,
) -> Result<(), Failure> {
    if json {
        return print_json(&sessions.iter().map(JsonSession::from).collect::<Vec<_>>());
    }
    if sessions.is_empty() {
        return say!("{none}");
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "SESSION",
        "HOLDER",
        "SINCE",
        "UNTIL (RENEWED)",
        "LOCKS",
    ]);
    for session in sessions {
        table.add_row([
            session.id.to_string(),
            session.holder.escape_debug().to_string(),
            for_people(session.opened_at),
            for_people(session.expires_at),
            session.locks.to_string(),
        ]);
    }
    say!("{table}")
}

/// `rowlock show`: a name, which may have neither holders nor waiters.
pub(crate) async fn show(url: &str, name: &Name, json: bool) -> Result<u8, Failure> {
    let rowlock = database::find(url).await?;
    let info = rowlock.admin().name(name.clone()).await?;
    let waiters = rowlock.admin().queue(name.clone()).await?;
    let held = info.as_ref().map_or(&[][..], |info| &info.holders);
    let pause = info.as_ref().and_then(|info| info.pause.as_ref());
    if json {
        print_json(&JsonListed {
            name: name.as_str(),
            kind: info.as_ref().and_then(|info| kind(info.kind)),
            holders: held.iter().map(Into::into).collect(),
            waiters: waiters.iter().map(Into::into).collect(),
            pause: pause.map(Into::into),
        })?;
    } else {
        print_tables(&format!("nobody holds {name:?}"), held, &waiters)?;
        pause::print(pause)?;
        quarantine::tell_of_it(&rowlock).await?;
        if held.is_empty() {
            database::tell_where(&rowlock);
        }
    }
    Ok(if held.is_empty() { ABSENT } else { 0 })
}

pub(crate) fn print_released(name: &Name, held: &[LockInfo]) -> Result<(), Failure> {
    for held in held {
        say!(
            "released {name:?}: {} held it since {}, with fence {}; the holder learns of its loss \
             at its next renewal",
            held.holder.escape_debug(),
            for_people(held.acquired_at),
            held.fence,
        )?;
    }
    Ok(())
}

/// `before` is `None` for a new semaphore.
pub(crate) fn print_capacity(
    name: &Name,
    capacity: u32,
    before: Option<u32>,
) -> Result<(), Failure> {
    let Some(before) = before else {
        return say!("{name:?} is new, and has a capacity of {capacity}");
    };
    say!("{name:?} has a capacity of {capacity} now; before, it was {before}")
}

pub(crate) fn print_migrations(rowlock: &Rowlock) -> Result<(), Failure> {
    let (target, applied) = (rowlock.target(), rowlock.admin().applied_migrations());
    if applied.is_empty() {
        say!("{target}: the tables are up to date")?;
    }
    for migration in applied {
        say!("{target}: applied {migration}")?;
    }
    Ok(())
}
