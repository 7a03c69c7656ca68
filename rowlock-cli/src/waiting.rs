//! What `rowlock run` tells a person while it waits.

use std::future::pending;
use std::io::IsTerminal as _;
use std::time::Duration;

use rowlock::{Error, Kind, Mode, Name, NameInfo, Rowlock};

use crate::out::tell;
use crate::show::for_people;

/// The variable in the command's environment with the name of its lock.
pub(crate) const NAME: &str = "ROWLOCK_NAME";
/// The variable in the command's environment with the fence.
pub(crate) const FENCE: &str = "ROWLOCK_FENCE";

/// How long a wait is before it is told, and how often the queue is looked at then.
const EVERY: Duration = Duration::from_secs(1);

/// After a second: says if the process waits for the lock of the `rowlock run` that started it. On a terminal it says
/// who has the lock, and which place this process has in the queue, then and whenever that has changed. It never ends.
/// `asked`: how many permits it waits for, if the name is a semaphore.
pub(crate) async fn tell_of_it(rowlock: &Rowlock, name: &Name, asked: u32) {
    let is_terminal = std::io::stderr().is_terminal();
    let mut outer = own_fence(name);
    let mut told = String::new();
    while is_terminal || outer.is_some() {
        tokio::time::sleep(EVERY).await;
        // (That the database is away is told elsewhere.)
        let Ok(info) = rowlock.admin().name(name.clone()).await else {
            continue;
        };
        if let Some(fence) = outer.take()
            && let Some(info) = &info
            && is_in_the_way(info, fence, asked)
        {
            tell(format_args!(
                "waits for {name:?}, which the `rowlock run` that started this one holds: if that waits for this one to \
                 end, this one waits in vain"
            ));
        }
        if is_terminal
            && let Ok(now) = state(rowlock, name, info).await
            && now != told
        {
            tell(format_args!("waits for {name:?}: {now}"));
            told = now;
        }
    }
    pending::<()>().await;
}

/// Whether the grant with this fence keeps this command waiting, even if all other holders release the name.
fn is_in_the_way(info: &NameInfo, fence: i64, asked: u32) -> bool {
    let own = info.holders.iter().find(|holder| holder.fence == fence);
    own.is_some_and(|own| match (own.mode, info.kind) {
        (Mode::Permit { weight, .. }, Kind::Semaphore { capacity, .. }) => {
            weight + asked > capacity
        }
        _ => true,
    })
}

/// The fence of the `rowlock run` in whose command this process runs, if its lock has this name.
fn own_fence(name: &Name) -> Option<i64> {
    let is_name = std::env::var(NAME).is_ok_and(|held| held == name.as_str());
    let fence = std::env::var(FENCE).ok().filter(|_| is_name)?;
    fence.parse().ok()
}

async fn state(rowlock: &Rowlock, name: &Name, info: Option<NameInfo>) -> Result<String, Error> {
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
