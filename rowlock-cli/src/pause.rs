//! `rowlock pause` and `rowlock resume`: nobody is granted a name for a while.

use std::time::Duration;

use clap::Args;
use rowlock::{Name, PauseInfo};

use crate::out::say;
use crate::person::user_at_host;
use crate::{ABSENT, Failure, database, duration};

#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// The lock, read/write lock, semaphore or job. A name that nobody has used for ten days becomes that of a lock:
    /// `rowlock forget` frees it for a semaphore again.
    name: Name,
    /// How long: 100ms to 366 days. Without it, until `rowlock resume`.
    #[arg(long = "for", value_parser = duration::parse, value_name = "DURATION", allow_hyphen_values = true)]
    time: Option<Duration>,
    /// Why, for people who wait.
    #[arg(long, value_name = "TEXT")]
    why: String,
}

impl Pause {
    pub(crate) async fn execute(self, url: &str) -> Result<u8, Failure> {
        let rowlock = database::find(url).await?;
        let admin = rowlock.admin();
        let before = admin.paused(self.name.clone()).await?;
        let pause = admin
            .pause_by(self.name.clone(), self.time, &self.why, &user_at_host())
            .await?;
        say!("{:?} is {pause}", self.name)?;
        if let Some(before) = before {
            say!("this replaces another pause: it was {before}")?;
        }
        match &admin.holders(self.name).await?[..] {
            [] => {}
            [first] => {
                let holder = first.holder.escape_debug();
                say!("{holder} holds it, and keeps it until it releases it")?;
            }
            [first, others @ ..] => {
                let (holder, more) = (first.holder.escape_debug(), others.len());
                say!("{holder} and {more} more hold it, and keep it until they release it")?;
            }
        }
        Ok(0)
    }
}

pub(crate) async fn resume(url: &str, name: Name) -> Result<u8, Failure> {
    let rowlock = database::find(url).await?;
    if rowlock.admin().resume(name.clone()).await? {
        say!("{name:?} is granted again")?;
        return Ok(0);
    }
    say!("{name:?} is not paused")?;
    database::tell_where(&rowlock);
    Ok(ABSENT)
}

/// For people: the names that are paused.
pub(crate) fn print<'a>(paused: impl IntoIterator<Item = &'a PauseInfo>) -> Result<(), Failure> {
    for pause in paused {
        say!("{:?} is {pause}", pause.name)?;
    }
    Ok(())
}
