//! `rowlock check`: whether a program could use this database.

use chrono::{DateTime, TimeDelta, Utc};
use rowlock::{Name, Rowlock};
use uuid::Uuid;

use crate::out::{say, tell};
use crate::{Failure, database};

/// What a quarantine keeps this command from finding out.
const NOT_TRIED: &str = "not tried: the database is in quarantine";

/// Connects, takes a lock and releases it. What is found is said in a line each; the first thing that is wrong is the
/// error.
pub(crate) async fn check(url: &str) -> Result<u8, Failure> {
    let rowlock = database::find(url).await?;
    let admin = rowlock.admin();
    say!(
        "server      {}: {}",
        rowlock.target(),
        admin.server_version()
    )?;
    say!("tables      as this version needs them")?;
    let trip = rowlock.ping().await?;
    let ahead = lock(&rowlock).await?;
    let rights = match ahead {
        Some(_) => "a lock was taken and released",
        None => NOT_TRIED,
    };
    say!("rights      {rights}")?;
    say!("round trip  {trip:.1?}")?;
    let clock = match ahead.map(|ahead| ahead.num_milliseconds()) {
        None => NOT_TRIED.into(),
        Some(-1_000..=1_000) => "that of this machine".into(),
        Some(ahead @ 1..) => format!("{ahead} ms ahead of this machine's"),
        Some(behind) => format!("{} ms behind this machine's", behind.abs()),
    };
    say!("clock       {clock}")?;
    let warnings = admin.warnings().await?;
    if warnings.is_empty() {
        say!("durability  commits are durable")?;
    }
    for warning in warnings {
        say!("durability  {warning}")?;
    }
    if let Some(left) = admin.quarantine_left().await? {
        tell(format_args!(
            "in quarantine: nothing is granted for another {left:.0?}"
        ));
    }
    Ok(0)
}

#[allow(clippy::disallowed_methods, reason = "it compares the clocks")]
fn now() -> DateTime<Utc> {
    Utc::now()
}

/// How far the database's clock is ahead of this machine's, by the time of a grant. `None`: the database is in
/// quarantine, and grants nothing.
async fn lock(rowlock: &Rowlock) -> Result<Option<TimeDelta>, Failure> {
    let name =
        Name::new(&format!("rowlock check {}", Uuid::new_v4())).map_err(rowlock::Error::from)?;
    let asked = now();
    let Some(held) = rowlock.lock(name.clone()).try_acquire().await? else {
        return Ok(None);
    };
    let answered = now();
    let info = rowlock.inspect(name.clone()).await?;
    held.release().await?;
    rowlock.admin().forget(name).await?;
    let granted = info.map_or(asked, |info| info.acquired_at);
    Ok(Some(granted - (asked + (answered - asked) / 2)))
}
