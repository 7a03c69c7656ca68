//! The database that `--url` names: how it is reached, and what is said to those who find nothing in it.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rowlock::{Builder, Error, Rowlock};
use sqlx::sqlite::SqliteConnectOptions;

use crate::{Failure, UNAVAILABLE};

/// Where the URL is, when it is not given.
pub(crate) const VARIABLE: &str = "ROWLOCK_URL";
/// The URL, when none is given.
pub(crate) const DEFAULT: &str = "sqlite:rowlock.db";

/// Makes what is missing: the file, the tables.
pub(crate) async fn make(url: &str) -> Result<Rowlock, Error> {
    check(url)?;
    builder().connect(url).await
}

/// Makes nothing: a command that works on what is there finds it, or says that there is none.
///
/// Tables that were brought up to date here would be too new for the processes that use them.
pub(crate) async fn find(url: &str) -> Result<Rowlock, Failure> {
    check(url)?;
    if !url.starts_with("sqlite:") {
        return Ok(builder().migrate(false).connect(url).await?);
    }
    if let Some(path) = path(url)
        && !path.exists()
    {
        let message = format!(
            "there is no database at {}: name another one with --url or {VARIABLE}; \
             `rowlock run` and `rowlock migrate` make it",
            path.display()
        );
        return Err(Failure::Other(message, UNAVAILABLE));
    }
    // It may go before it is opened.
    let mode = match url.split_once('?') {
        None => "?mode=rw",
        Some((_, parameters)) if has_mode(parameters) => "",
        Some(_) => "&mode=rw",
    };
    let url = format!("{url}{mode}");
    Ok(builder().migrate(false).connect(&url).await?)
}

/// The whole path of a SQLite file. `None`: the URL names none, or cannot be used; connecting says why.
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

/// Whether the URL says how its file is opened.
fn has_mode(parameters: &str) -> bool {
    let mut parameters = parameters.split('&');
    parameters.any(|parameter| parameter.starts_with("mode="))
}

/// Tells where nothing was found. (A program that reads JSON is told nothing more.)
pub(crate) fn tell_where(rowlock: &Rowlock) {
    eprintln!(
        "rowlock: looked in {} (another database: --url or ROWLOCK_URL)",
        rowlock.target()
    );
}

fn check(url: &str) -> Result<(), Error> {
    let refuse = |reason: String| Err(Error::InvalidUrl { reason });
    if url.is_empty() {
        return refuse(format!(
            "it is empty: give one with --url or {VARIABLE}, or unset {VARIABLE} for {DEFAULT}"
        ));
    }
    if url.starts_with("sqlite:") && (url.contains(":memory:") || url.contains("mode=memory")) {
        return refuse("a database in memory is this process's alone: name a file".into());
    }
    Ok(())
}

/// `rowlock ls` on a database that takes this long is better told so. A command that ends at once need not clean.
fn builder() -> Builder {
    Rowlock::builder()
        .clean_every(None)
        .operation_timeout(Duration::from_secs(5))
}
