//! The database that `--url` names.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use rowlock::{Builder, ConnectError, Engine, Error, Rowlock};
use sqlx::sqlite::SqliteConnectOptions;

use crate::out::tell;
use crate::{Failure, UNAVAILABLE, USAGE};

/// The variable with the URL, when `--url` is not given.
pub(crate) const VARIABLE: &str = "ROWLOCK_URL";
/// The URL when neither is given.
pub(crate) const DEFAULT: &str = "sqlite:rowlock.db";

/// The client of this process. A command has one.
static CLIENT: OnceLock<Rowlock> = OnceLock::new();

/// The schema of the tables, if one was given.
static SCHEMA: OnceLock<String> = OnceLock::new();

/// How long the end of a command waits for what its client leaves to do.
const CLOSING: Duration = Duration::from_secs(1);

/// The variable with the schema, when `--schema` is not given.
pub(crate) const SCHEMA_VARIABLE: &str = "ROWLOCK_SCHEMA";

/// From now on the tables are in this schema, if one is given. (An empty variable is not set.)
pub(crate) fn in_schema(schema: Option<String>) {
    let is_unset = std::env::var(SCHEMA_VARIABLE).is_ok_and(|set| set.is_empty());
    if let Some(schema) = schema.filter(|schema| !(is_unset && schema.is_empty())) {
        let _ = SCHEMA.set(schema);
    }
}

/// The SQL before that of a migration, which a person runs.
pub(crate) fn before_migration(engine: Engine) -> Result<String, Failure> {
    let refused = |why: &str| Err(Failure::Other(format!("--schema is refused: {why}"), USAGE));
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    match (engine, SCHEMA.get()) {
        (Engine::Postgres, Some(schema)) if schema.chars().all(is_part) => {
            Ok(format!("SET search_path TO \"{schema}\";\n"))
        }
        (Engine::Postgres, Some(_)) => {
            refused("lower-case letters, digits and underscores are allowed")
        }
        (_, Some(_)) => refused("only PostgreSQL has schemas"),
        (Engine::Sqlite, None) => Ok("PRAGMA journal_mode = WAL;\n".into()),
        (_, None) => Ok(String::new()),
    }
}

/// The schema, unless another command finds it in its environment, too.
pub(crate) fn schema_argument() -> Option<&'static str> {
    let schema = SCHEMA.get()?;
    let is_set = std::env::var(SCHEMA_VARIABLE).is_ok_and(|set| set == *schema);
    (!is_set).then_some(schema)
}

/// Connects, and creates the SQLite file and the tables if they are missing.
pub(crate) async fn make(url: &str) -> Result<Rowlock, Error> {
    check(url)?;
    connect(builder(), url).await
}

async fn connect(builder: Builder, url: &str) -> Result<Rowlock, Error> {
    let rowlock = builder.connect(url).await?;
    Ok(CLIENT.get_or_init(|| rowlock).clone())
}

/// Ends the client, and with it its connections: a SQLite file without other users has all its data in itself then,
/// and no log beside it.
pub(crate) async fn close() {
    if let Some(rowlock) = CLIENT.get() {
        rowlock.shutdown(CLOSING).await;
    }
}

/// [`make`], but nothing is granted for this time.
pub(crate) async fn make_in_quarantine(url: &str, time: Duration) -> Result<Rowlock, Error> {
    check(url)?;
    connect(builder().quarantine(time), url).await
}

/// [`make`], for a client that waits for locks and holds them. If it is killed while it waits, its place in the queue
/// ends with its session: after the same time as the lock would.
pub(crate) async fn make_for(url: &str, ttl: Duration) -> Result<Rowlock, Error> {
    check(url)?;
    connect(builder().session_ttl(ttl), url).await
}

/// Connects, and creates nothing: an error says that the database or the tables are missing.
///
/// It does not update the tables either: new tables could be too new for processes that still use the old ones.
pub(crate) async fn find(url: &str) -> Result<Rowlock, Failure> {
    find_with(builder(), url).await
}

/// [`find`], for a client that several people use at a time: four slow operations need not wait for each other.
pub(crate) async fn find_for_many(url: &str) -> Result<Rowlock, Failure> {
    find_with(builder().max_connections(7), url).await
}

async fn find_with(builder: Builder, url: &str) -> Result<Rowlock, Failure> {
    let builder = builder.migrate(false);
    check(url)?;
    if !url.starts_with("sqlite:") {
        return Ok(connect(builder, url).await?);
    }
    if let Some(path) = missing(url) {
        let message = format!(
            "there is no database at {}: name another database with --url or {VARIABLE}, or create this one with \
             `rowlock migrate` (`rowlock run` creates it, too). If it was lost, create it with `rowlock quarantine --for TIME`",
            path.display()
        );
        return Err(Failure::Other(message, UNAVAILABLE));
    }
    // The file may vanish before sqlx opens it, and must not be created then.
    let mode = match url.split_once('?') {
        None => "?mode=rw",
        Some((_, parameters)) if has_mode(parameters) => "",
        Some(_) => "&mode=rw",
    };
    let url = format!("{url}{mode}");
    Ok(connect(builder, &url).await?)
}

/// The absolute path of a SQLite file. `None`: the URL names no file, or is wrong. Then connecting reports the error.
fn path(url: &str) -> Option<PathBuf> {
    let options = SqliteConnectOptions::from_str(url).ok()?;
    let name = options.get_filename();
    let is_file = !name.as_os_str().is_empty() && !name.to_string_lossy().starts_with("file:");
    let is_path = is_file && !has_broken_escape(url);
    is_path.then(|| std::path::absolute(name).ok()).flatten()
}

fn has_broken_escape(url: &str) -> bool {
    let is_whole = |after: &str| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    !url.split('%').skip(1).all(is_whole)
}

/// Whether the URL says how to open its file.
fn has_mode(parameters: &str) -> bool {
    let mut parameters = parameters.split('&');
    parameters.any(|parameter| parameter.starts_with("mode="))
}

/// Says which database was searched, when nothing was found. (With `--json` the command does not call this.)
pub(crate) fn tell_where(rowlock: &Rowlock) {
    tell(format_args!(
        "looked in {} (--url or ROWLOCK_URL names another database)",
        rowlock.target()
    ));
}

/// The SQLite file, if it does not exist. (One that this user may not see exists, perhaps: connecting reports that.)
pub(crate) fn missing(url: &str) -> Option<PathBuf> {
    let path = url.starts_with("sqlite:").then(|| path(url)).flatten();
    path.filter(|path| matches!(path.try_exists(), Ok(false)))
}

/// Says that the command has made the file: the name may be mistyped, or the working directory another one.
pub(crate) fn tell_made(file: &Path) {
    tell(format_args!(
        "made {}: only processes that use this file see its locks (--url or {VARIABLE} names another database)",
        file.display()
    ));
}

fn check(url: &str) -> Result<(), Error> {
    let refuse = |reason: String| Err(Error::Connect(ConnectError::InvalidUrl { reason }));
    if url.is_empty() {
        return refuse(format!(
            "it is empty: give a URL with --url or {VARIABLE}, or unset {VARIABLE} to use {DEFAULT}"
        ));
    }
    if url.starts_with("sqlite:") && (url.contains(":memory:") || url.contains("mode=memory")) {
        return refuse("a database in memory is this process's alone, and no other process sees its locks: name a file".into());
    }
    Ok(())
}

/// A person waits for the answer, so the timeout is short. A command that ends at once need not clean.
fn builder() -> Builder {
    let builder = Rowlock::builder()
        .clean_every(None)
        .max_connections(2)
        .operation_timeout(Duration::from_secs(5));
    match SCHEMA.get() {
        Some(schema) => builder.schema(schema),
        None => builder,
    }
}
