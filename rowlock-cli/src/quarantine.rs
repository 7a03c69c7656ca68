//! `rowlock quarantine`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rowlock::Rowlock;
use serde_json::json;

use crate::out::{milliseconds, print_json, say, tell};
use crate::{Failure, database, duration};

/// Three times the default TTL of a session, which is the longest of the default times.
const LEAST: Duration = Duration::from_secs(90);

#[derive(Debug, Args)]
pub(crate) struct Quarantine {
    /// How long, from now on: at least the longest TTL, `--at-least-for` or lease that is in use, and three times the
    /// session TTL. A quarantine that lasts longer stays.
    #[arg(long = "for", value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true, conflicts_with = "end")]
    time: Option<Duration>,
    /// End the quarantine now: it is certain that no lease was forgotten.
    #[arg(long)]
    end: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Quarantine {
    /// `made`: the SQLite file, if connecting makes it.
    pub(crate) async fn execute(self, url: &str, made: Option<PathBuf>) -> Result<u8, Failure> {
        let rowlock = match self.time {
            // It makes the tables of an empty database, too: in quarantine from the start.
            Some(time) => database::make_in_quarantine(url, time).await?,
            None => database::find(url).await?,
        };
        if let Some(made) = made.filter(|_| self.time.is_some()) {
            database::tell_made(&made);
        }
        let target = rowlock.target();
        if self.end {
            let has_ended = rowlock.admin().end_quarantine().await?;
            if self.json {
                print_json(&json!({ "left_ms": null }))?;
            } else if has_ended {
                say!("{target}: the quarantine has ended")?;
            } else {
                say!("{target} was not in quarantine")?;
            }
            return Ok(0);
        }
        let left = rowlock.admin().quarantine_left().await?;
        match left {
            left if self.json => print_json(&json!({ "left_ms": left.map(milliseconds) }))?,
            Some(left) if self.time.is_some_and(|time| time < left) => say!(
                "{target} grants nothing for another {left:.0?}: it was in quarantine before, and the longer time counts"
            )?,
            Some(left) => say!("{target} grants nothing for another {left:.0?}")?,
            None => say!("{target} is not in quarantine")?,
        }
        if [self.time, left]
            .iter()
            .flatten()
            .filter(|time| **time < LEAST)
            .count()
            == 2
        {
            tell(format_args!(
                "that is shorter than {} s, for which clients with default settings trust what they hold: their locks may be granted to others, too",
                LEAST.as_secs()
            ));
        }
        Ok(0)
    }
}

/// Tells people who look at locks or jobs that none is granted now, and none begins.
pub(crate) async fn tell_of_it(rowlock: &Rowlock) -> Result<(), Failure> {
    if let Some(left) = rowlock.admin().quarantine_left().await? {
        tell(format_args!(
            "{} is in quarantine: it grants nothing for another {left:.0?}",
            rowlock.target()
        ));
    }
    Ok(())
}
