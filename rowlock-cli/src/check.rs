//! `rowlock check`: whether a program could use this database.

use chrono::{DateTime, Utc};
use rowlock::{Name, Rowlock};
use uuid::Uuid;

use crate::out::{say, tell};
use crate::{Failure, database};

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
    say!("rights      a lock was taken and released")?;
    say!("round trip  {trip:.1?}")?;
    let (ahead, by) = (ahead.num_milliseconds() > 0, ahead.num_milliseconds().abs());
    let clock = match by {
        ..=1_000 => "that of this machine".into(),
        _ if ahead => format!("{by} ms ahead of this machine's"),
        _ => format!("{by} ms behind this machine's"),
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

/// How far the database's clock is ahead of this machine's, by the time of a grant. (In a quarantine nothing is
/// granted.)
async fn lock(rowlock: &Rowlock) -> Result<chrono::TimeDelta, Failure> {
    let name =
        Name::new(&format!("rowlock check {}", Uuid::new_v4())).map_err(rowlock::Error::from)?;
    let asked = now();
    let Some(held) = rowlock.lock(name.clone()).try_acquire().await? else {
        return Ok(chrono::TimeDelta::zero());
    };
    let answered = now();
    let info = rowlock.inspect(name.clone()).await?;
    held.release().await?;
    rowlock.admin().forget(name).await?;
    let granted = info.map_or(asked, |info| info.acquired_at);
    Ok(granted - (asked + (answered - asked) / 2))
}
