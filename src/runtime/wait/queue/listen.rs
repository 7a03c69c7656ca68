//! Hearing at once whose turn it is, where the server tells it.
//!
//! Behind a pooler or a proxy a client may ask to be told and is never told. So the news count only after a test: the
//! [looks](super::watch) send one, over another connection. When a look finds news that were not heard, there is a
//! test again.

use std::pin::pin;
use std::time::Duration;

use tokio::select;
use tokio::sync::OwnedSemaphorePermit;

use super::Queue;
use super::watch::LONGEST_BETWEEN_LOOKS;
use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::batch::link::Link;
use crate::runtime::batch::spare::Spare;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::{Listener, News};
use uuid::Uuid;

/// The pause after a connection that was lost, or that heard no test: doubled each time, until news are heard.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_mins(1));

/// With no waiter for this long, the connection is closed.
const IDLE: Duration = Duration::from_secs(10);

pub(crate) async fn listen(link: Link, spare: &Spare, queue: &Queue, target: &str) {
    let mut pause = PAUSES.0;
    loop {
        let began = Moment::now();
        let wanted = {
            let state = queue.state.lock();
            if state.is_closed {
                return;
            }
            let waits = !state.seats.is_empty();
            let session = state.session.as_ref().filter(|_| waits);
            session.map(|session| session.grant.id)
        };
        let Some(session) = wanted else {
            queue.listen.notified().await;
            continue;
        };
        let Some(room) = room(spare, queue, session).await else {
            continue;
        };
        let listened = select! {
            listened = link.listen(session) => listened,
            () = spare.wanted() => continue,
        };
        let heard = match listened {
            Ok(Some(mut listener)) => {
                let sleeps = listener.sleeps();
                queue.set_sleeper(sleeps.then_some(session));
                let heard = select! {
                    heard = hear(&mut *listener, queue, session, &mut pause) => heard,
                    // Looks find out what no news tell.
                    () = spare.wanted() => Ok(()),
                };
                if sleeps {
                    queue.test(session);
                }
                listener.close().await;
                queue.set_sleeper(None);
                heard
            }
            // No news reach this client: looks come often.
            Ok(None) => return,
            Err(fault) => Err(fault),
        };
        drop(room);
        match heard {
            Ok(()) => {}
            Err(fault) => {
                if (began + PAUSES.1).has_passed() {
                    pause = PAUSES.0;
                }
                tracing::debug!(%target, error = %fault, "the server does not tell whose turn it is: looking often");
                select! {
                    () = sleep_until(Moment::now() + pause) => {}
                    () = closed(queue) => return,
                }
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }
}

/// Waits for a connection; `None`: the session is not that of the waiters any more.
async fn room(spare: &Spare, queue: &Queue, session: Uuid) -> Option<OwnedSemaphorePermit> {
    let mut room = pin!(spare.take());
    loop {
        let is_wanted = {
            let state = queue.state.lock();
            let current = state.session.as_ref().map(|session| session.grant.id);
            !state.is_closed && current == Some(session)
        };
        if !is_wanted {
            return None;
        }
        select! {
            room = &mut room => return Some(room),
            () = queue.listen.notified() => {}
        }
    }
}

/// Hears the news of a session until there is another one, or until nobody waits for a while. An error: news may be
/// lost.
async fn hear(
    listener: &mut dyn Listener,
    queue: &Queue,
    session: Uuid,
    pause: &mut Duration,
) -> Result<(), Fault> {
    let end = NewsEnd(queue);
    // Since when it is unknown whether the server tells the news.
    let mut untold = Some(Moment::now());
    queue.test(session);
    let mut quiet: Option<Moment> = None;
    loop {
        let mut next = pin!(listener.next());
        let news = loop {
            let missed_at;
            let (is_wanted, is_told, is_idle) = {
                let state = queue.state.lock();
                let current = state.session.as_ref().map(|session| session.grant.id);
                let is_wanted = !state.is_closed && current == Some(session);
                missed_at = state.missed_at();
                let is_told = state.told.is_some() || state.woken.is_some();
                (is_wanted, is_told, state.seats.is_empty())
            };
            quiet = is_idle.then(|| quiet.unwrap_or_else(Moment::now));
            let idle_at = quiet.map(|since| since + IDLE);
            if !is_wanted || idle_at.is_some_and(Moment::has_passed) {
                drop(end);
                return Ok(());
            }
            untold = (!is_told).then(|| untold.unwrap_or_else(Moment::now));
            let test_ends = untold.map(|since| since + LONGEST_BETWEEN_LOOKS * 2);
            if test_ends.is_some_and(Moment::has_passed) {
                return Err(Fault::timed_out());
            }
            if missed_at.is_some_and(Moment::has_passed) {
                queue.test(session);
                continue;
            }
            let wake = test_ends.into_iter().chain(missed_at).min();
            let wake = wake.unwrap_or_else(|| Moment::now() + IDLE);
            select! {
                news = &mut next => break news?,
                () = queue.listen.notified() => {}
                () = sleep_until(wake) => {}
            }
        };
        match news {
            News::Passed { to, by_another } => {
                if by_another {
                    queue.heard();
                }
                queue.passed(to);
            }
            News::Look => queue.queued(true),
            News::Woken => {
                queue.woken();
                *pause = PAUSES.0;
            }
            News::Test => {
                queue.set_told(Some(session));
                *pause = PAUSES.0;
            }
        }
    }
}

/// The news are not told any more, when this is dropped.
struct NewsEnd<'a>(&'a Queue);

impl Drop for NewsEnd<'_> {
    fn drop(&mut self) {
        self.0.set_told(None);
    }
}

async fn closed(queue: &Queue) {
    while !queue.state.lock().is_closed {
        queue.listen.notified().await;
    }
}
