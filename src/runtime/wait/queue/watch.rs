//! Looks: one statement for all waiters of the client, and the names that have to be passed on.

use std::sync::Arc;
use std::time::Duration;

use tokio::select;

use super::Queue;
use super::deadlock::Search;
use super::seat::{Seat, SeatEnd};
use crate::model::{FaultKind, Kind, Moment, Name};
use crate::runtime::base::backoff;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::base::wait_log::WaitLog;
use crate::runtime::batch::link::Link;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::permit::pass_any;
use crate::store::verbs::queue::{LookOutcome, LookParams, PassWhy};

/// The longest time between two looks, however quiet it is: news that were lost are found then.
pub(super) const LONGEST_BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Where the server tells no news: the next look comes after this fraction of the time since the last change, within
/// these bounds.
const FRACTION: u32 = 10;
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// (On `MySQL` a look is three statements: it must not be sent to a replica, so it is in a transaction.)
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// Where a number tells whether anything has changed, which costs little (SQLite).
const LONGEST_VERSION_PAUSE: Duration = Duration::from_millis(5);

/// Looks that come sooner than the pace leave the server and the connection alone for this many times as long as the
/// last one took.
const REST: u32 = 10;

/// The pause before a name whose row a transaction has locked is passed on.
const LOCKED_PAUSE: Duration = Duration::from_millis(20);

/// How long names are passed on before the next look.
const PASSING: Duration = Duration::from_millis(100);

/// How many waiters of a name most looks are for. One per second is for all.
const FIRSTS: usize = 3;

/// How many waiters one statement looks at.
const PAGE: usize = 1_000;

pub(crate) async fn watch(mut link: Link, queue: &Queue, target: &str) {
    let (mut backoff, mut log) = (backoff::reconnect(), WaitLog::default());
    let (mut seen, mut search) = (LastLook::nothing(), Search::default());
    loop {
        let began = Moment::now();
        let (all, has_work) = {
            let has_work =
                !queue.state.lock().forget.is_empty() || queue.state.lock().test.is_some();
            if queue.state.lock().is_closed {
                break;
            }
            (queue.asks(), has_work)
        };
        if all.is_empty() && !has_work {
            link.rest(queue.watch.notified()).await;
            continue;
        }
        let done = match look(&mut link, queue, (&all, began), &mut seen).await {
            // A search that fails ends no wait.
            Ok(()) => search.turn(&mut link, queue, (&all, target)).await,
            Err(fault) => {
                if fault.kind.is_of_schema() {
                    // Tasks that wait get the error that new callers get.
                    for (_, seat) in &all {
                        seat.tell(SeatEnd::Refused(fault.clone()));
                    }
                }
                Err(fault)
            }
        };
        if let Err(fault) = done {
            if fault.kind == FaultKind::LockTimeout {
                // A transaction of the application's has the file.
                tracing::debug!(%target, error = %fault, "cannot look whose turn it is, will try again");
            } else {
                log.trouble(&"a turn", &format_args!("{target}: {fault}"));
            }
            // The names after the one that could not be passed on have their turn.
            seen = LastLook {
                passed: seen.passed,
                ..LastLook::nothing()
            };
            sleep_until(Moment::now() + backoff.next().unwrap_or_default()).await;
            continue;
        }
        backoff = backoff::reconnect();
        log.over(&"a turn");
        let searched = search.next(&all);
        drop(all);
        loop {
            let at = seen.next(queue);
            let at = searched.map_or(at, |due| at.min(due));
            if at.has_passed() {
                break;
            }
            select! {
                // Perhaps the next look has to come sooner.
                () = queue.watch.notified() => {}
                () = sleep_until(at) => break,
            }
        }
    }
    let sleeper = queue.state.lock().sleeper;
    if let Some(session) = sleeper {
        // The server would end its sleep, and its connection, seconds later.
        let wake = async |store: &mut dyn Store| store.queue_test(session).await;
        let _ = link.run("watch", link.operation_timeout(), wake).await;
    }
    link.close().await;
}

/// What the last look saw.
#[derive(Debug)]
struct LastLook {
    /// When it ended.
    at: Moment,
    /// When it began.
    began: Moment,
    /// It came because there were news.
    is_woken: bool,
    /// How long it took.
    took: Duration,
    /// When the last look at all waiters began; `None`: there was none over this connection.
    whole: Option<Moment>,
    /// When the last look began.
    looked: Option<Moment>,
    /// When the first grant that is waited for expires.
    expiry: Option<Moment>,
    version: Option<i64>,
    /// The name that was passed on last: the next look begins after it, so that names that cannot be passed on keep
    /// back no others.
    passed: Option<Name>,
}

impl LastLook {
    fn nothing() -> Self {
        Self {
            at: Moment::now(),
            began: Moment::now(),
            is_woken: false,
            took: Duration::ZERO,
            whole: None,
            looked: None,
            expiry: None,
            version: None,
            passed: None,
        }
    }

    /// Whether nothing has changed since, if the database now has this version.
    fn shows_all(&self, version: Option<i64>, queue: &Queue) -> bool {
        // A place may have come since, with a row that the version has counted before.
        let is_old = |looked| queue.is_unchanged_since(looked);
        version.is_some() && version == self.version && self.looked.is_some_and(is_old)
    }

    /// When to look again.
    fn next(&self, queue: &Queue) -> Moment {
        let state = queue.state.lock();
        let is_over = !state.forget.is_empty();
        let is_due = state.is_urgent || state.is_woken || state.test.is_some();
        if state.is_closed || is_due || is_over {
            return self.at;
        }
        let pause = if state.is_pushed() {
            LONGEST_BETWEEN_LOOKS
        } else {
            let quiet = state.changed.map_or(LONGEST_BETWEEN_LOOKS, Moment::elapsed);
            let longest = match self.version {
                Some(_) => LONGEST_VERSION_PAUSE,
                None => LONGEST_PAUSE,
            };
            (quiet / FRACTION).clamp(SHORTEST_PAUSE, longest)
        };
        let at = self.at + pause;
        let soon = state.soon.map(|soon| soon.max(self.at + self.took * REST));
        let sooner = self.expiry.into_iter().chain(soon);
        sooner.fold(at, Moment::min)
    }
}

async fn look(
    link: &mut Link,
    queue: &Queue,
    (all, began): (&[(LookParams, Arc<Seat>)], Moment),
    seen: &mut LastLook,
) -> Result<(), Fault> {
    let timeout = link.operation_timeout();
    let is_new = !link.is_connected();
    link.connect().await?;
    let (is_urgent, is_soon, test) = {
        let state = &mut *queue.state.lock();
        let is_soon = state.soon.take_if(|soon| soon.has_passed()).is_some();
        seen.is_woken = std::mem::take(&mut state.is_woken);
        seen.began = began;
        let is_urgent = std::mem::take(&mut state.is_urgent);
        (is_urgent, is_soon, state.test.take())
    };
    if let Some(session) = test {
        let test = async |store: &mut dyn Store| store.queue_test(session).await;
        if let Err(fault) = link.run("watch", timeout, test).await {
            queue.state.lock().test.get_or_insert(session);
            return Err(fault);
        }
    }
    let version = async |store: &mut dyn Store| store.queue_version().await;
    let version = link.run("watch", timeout, version).await?;
    let is_whole = is_urgent
        || seen
            .whole
            .is_none_or(|whole| began - whole >= LONGEST_BETWEEN_LOOKS);
    let is_due =
        is_whole || is_soon || seen.is_woken || seen.expiry.is_some_and(Moment::has_passed);
    if !seen.shows_all(version, queue) || is_new || is_due {
        seen.expiry = None;
        let mut orphaned = Vec::new();
        let first = firsts(all);
        for page in if is_whole { all } else { &first }.chunks(PAGE) {
            for has_permits in [false, true] {
                orphaned.extend(look_at(link, queue, page, has_permits, seen).await?);
            }
        }
        orphaned.sort_by(|(one, _), (other, _)| one.cmp(other));
        orphaned.dedup();
        pass_on(link, queue, orphaned, seen).await?;
        (seen.looked, seen.version) = (Some(began), version);
        seen.whole = if is_whole { Some(began) } else { seen.whole };
    }
    seen.at = Moment::now();
    seen.took = seen.at - began;
    Ok(())
}

/// The first waiters of each name: their turns come first.
fn firsts(all: &[(LookParams, Arc<Seat>)]) -> Vec<(LookParams, Arc<Seat>)> {
    let of_names = all.chunk_by(|(one, _), (other, _)| one.name == other.name);
    let firsts = of_names.flat_map(|of_name| of_name.iter().take(FIRSTS));
    firsts.cloned().collect()
}

/// Looks at those waiters of the page that wait for permits, or at those that wait for locks. Tells those whose turn
/// has come. Returns the names that have to be passed on, with their kinds.
async fn look_at(
    link: &mut Link,
    queue: &Queue,
    page: &[(LookParams, Arc<Seat>)],
    has_permits: bool,
    seen: &mut LastLook,
) -> Result<Vec<(Name, Kind)>, Fault> {
    let timeout = link.operation_timeout();
    let page = page
        .iter()
        .filter(|(_, seat)| seat.ticket.kind.has_permits() == has_permits);
    let (all, seats): (Vec<LookParams>, Vec<_>) = page.cloned().unzip();
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let look = async |store: &mut dyn Store| {
        if has_permits {
            store.permit_look(&all).await
        } else {
            store.queue_look(&all).await
        }
    };
    let looked = link.run("watch", timeout, look).await?;
    let now = Moment::now();
    let mut orphaned: Vec<(Name, Kind)> = Vec::new();
    let mut untold = 0;
    for ((params, seat), looked) in all.iter().zip(seats).zip(looked) {
        match looked {
            LookOutcome::Granted => {
                untold += usize::from(seat.tell(SeatEnd::Granted));
            }
            LookOutcome::Gone => {
                seat.tell(SeatEnd::Gone);
            }
            LookOutcome::Waiting {
                is_orphaned: true, ..
            } => {
                let of = (params.name.clone(), seat.ticket.kind);
                if orphaned.last() != Some(&of) {
                    orphaned.push(of);
                }
            }
            LookOutcome::Waiting { remaining, .. } => {
                let expiry = now + remaining + SHORTEST_PAUSE;
                seen.expiry = Some(seen.expiry.map_or(expiry, |first| first.min(expiry)));
            }
        }
    }
    if untold > 0 && seen.is_woken {
        queue.brought(seen.began);
    } else if untold > 0 {
        queue.missed(seen.began);
    }
    if has_permits && untold >= FIRSTS {
        queue.look_again();
    }
    Ok(orphaned)
}

/// Puts the names after `last` before the others.
fn begin_after(names: &mut [(Name, Kind)], last: &Name) {
    let first = names.partition_point(|(name, _)| name <= last);
    names.rotate_left(first);
}

/// Passes names on, for a moment. The next look finds those that are left.
async fn pass_on(
    link: &mut Link,
    queue: &Queue,
    mut orphaned: Vec<(Name, Kind)>,
    seen: &mut LastLook,
) -> Result<(), Fault> {
    let timeout = link.operation_timeout();
    if let Some(last) = &seen.passed {
        begin_after(&mut orphaned, last);
    }
    let until = Moment::now() + PASSING;
    let mut is_left = false;
    for (name, kind) in orphaned {
        if until.has_passed() {
            is_left = true;
            break;
        }
        seen.passed = Some(name.clone());
        let (why, has_permits) = (PassWhy::Orphaned, kind.has_permits());
        let pass = async |store: &mut dyn Store| pass_any(store, &name, why, has_permits).await;
        match link.run("pass on", timeout, pass).await? {
            None => is_left = true,
            Some(passed) => queue.all_passed(&passed.next),
        }
    }
    if is_left {
        let again = Moment::now() + LOCKED_PAUSE;
        seen.expiry = Some(seen.expiry.map_or(again, |first| first.min(again)));
    }
    Ok(())
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
