//! `rowlock quarantine`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::out::say;
use crate::{Failure, database, duration};

#[derive(Debug, Args)]
pub(crate) struct Quarantine {
    /// How long, from now on: at least the longest TTL, `--at-least-for` or lease that is in use. A quarantine that lasts longer stays.
    #[arg(long = "for", value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true, conflicts_with = "end")]
    time: Option<Duration>,
    /// End the quarantine now: it is certain that no lease was forgotten.
    #[arg(long)]
    end: bool,
}

impl Quarantine {
    /// `made`: the default file, if connecting makes it.
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
            if rowlock.end_quarantine().await? {
                say!("{target}: the quarantine has ended")?;
            } else {
                say!("{target} was not in quarantine")?;
            }
            return Ok(0);
        }
        match rowlock.quarantine_left().await? {
            Some(left) if self.time.is_some_and(|time| time < left) => say!(
                "{target} grants nothing for another {left:.0?}: it was in quarantine before, and the longer time counts"
            )?,
            Some(left) => say!("{target} grants nothing for another {left:.0?}")?,
            None => say!("{target} is not in quarantine")?,
        }
        Ok(0)
    }
}
