//! `rowlock quarantine`.

use std::time::Duration;

use clap::Args;

use crate::out::say;
use crate::{Failure, database, duration};

#[derive(Debug, Args)]
pub(crate) struct Quarantine {
    /// How long, from now on: at least the longest TTL that is in use. A quarantine that lasts longer stays.
    #[arg(long = "for", value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true, conflicts_with = "end")]
    time: Option<Duration>,
    /// End the quarantine now: it is certain that no lease was forgotten.
    #[arg(long)]
    end: bool,
}

impl Quarantine {
    pub(crate) async fn execute(self, url: &str) -> Result<u8, Failure> {
        let rowlock = match self.time {
            // It makes the tables of an empty database, too: in quarantine from the start.
            Some(time) => database::make_in_quarantine(url, time).await?,
            None => database::find(url).await?,
        };
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
            Some(left) => say!("{target} grants nothing for another {left:.0?}")?,
            None => say!("{target} is not in quarantine")?,
        }
        Ok(0)
    }
}
