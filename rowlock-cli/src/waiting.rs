//! What `rowlock run` tells a person while it waits.

use std::future::pending;
use std::io::IsTerminal as _;
use std::time::Duration;

use rowlock::{Error, Name, Rowlock};

use crate::out::tell;
use crate::show::for_people;

/// How long a wait is before it is told, and how often the queue is looked at then.
const EVERY: Duration = Duration::from_secs(1);

/// Says on a terminal who has the lock, and which place this process has in the queue: after a second, and whenever
/// that has changed. It never ends. In a pipe it says nothing.
pub(crate) async fn tell_of_it(rowlock: &Rowlock, name: &Name) {
    if !std::io::stderr().is_terminal() {
        return pending().await;
    }
    let mut told = String::new();
    loop {
        tokio::time::sleep(EVERY).await;
        // (That the database is away is told elsewhere.)
        let Ok(now) = state(rowlock, name).await else {
            continue;
        };
        if now != told {
            tell(format_args!("waits for {name:?}: {now}"));
            told = now;
        }
    }
}

async fn state(rowlock: &Rowlock, name: &Name) -> Result<String, Error> {
    let info = rowlock.admin().name(name.clone()).await?;
    let queue = rowlock.admin().queue(name.clone()).await?;
    let (held, pause) = info.map_or_else(Default::default, |info| (info.holders, info.pause));
    let quarantine = rowlock.admin().quarantine_left().await?;
    let who = match &held[..] {
        [] if quarantine.is_some() => {
            "the database is in quarantine, and grants nothing until that ends".into()
        }
        [] if let Some(pause) = &pause => pause.to_string(),
        [] => "nobody holds it now".into(),
        [first, others @ ..] => {
            let more = match others.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let since = for_people(first.acquired_at);
            format!(
                "held by {}{more} since {since}",
                first.holder.escape_debug()
            )
        }
    };
    let place = queue
        .iter()
        .position(|waiter| waiter.holder == rowlock.holder());
    Ok(match place {
        Some(0) => format!("{who}; this process is next"),
        Some(before) => format!("{who}; {before} before this process"),
        None => who,
    })
}
