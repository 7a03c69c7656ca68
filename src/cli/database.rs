//! The database that `--url` names: how it is reached, and what is said to those who find nothing in it.

use std::time::Duration;

use super::{Failure, UNAVAILABLE};
use crate::client::{Builder, Rowlock};
use crate::model::Error;
use crate::store::sqlite::Sqlite;

/// Where the URL is, when it is not given.
pub(super) const VARIABLE: &str = "ROWLOCK_URL";
/// The URL, when none is given.
pub(super) const DEFAULT: &str = "sqlite:rowlock.db";

/// Makes what is missing: the file, the tables.
pub(super) async fn make(url: &str) -> Result<Rowlock, Error> {
    check(url)?;
    builder().connect(url).await
}

/// Makes nothing: a command that works on what is there finds it, or says that there is none.
///
/// Tables that were brought up to date here would be too new for the processes that use them.
pub(super) async fn find(url: &str) -> Result<Rowlock, Failure> {
    check(url)?;
    if !url.starts_with("sqlite:") {
        return Ok(builder().migrate(false).connect(url).await?);
    }
    if let Some(path) = Sqlite::parse(url)?.path()
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
    let mode = match (Sqlite::has_mode(url), url.contains('?')) {
        (true, _) => "",
        (false, true) => "&mode=rw",
        (false, false) => "?mode=rw",
    };
    let url = format!("{url}{mode}");
    Ok(builder().migrate(false).connect(&url).await?)
}

/// Tells where nothing was found. (A program that reads JSON is told nothing more.)
pub(super) fn tell_where(rowlock: &Rowlock) {
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
