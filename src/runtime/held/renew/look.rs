//! Looks at all grants of a session, page by page: a session may have many, and a renewal waits for one page at most.

use super::{MAX_PAUSE, RenewShared};
use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;
use crate::runtime::batch::link::Link;
use crate::runtime::held::session::{Session, SessionRenewal};
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::release::ReleaseParams;

/// How many grants one statement reads. Between two of them other tasks of the thread have their turn, and renewals
/// the connection.
const PAGE: u32 = 2_000;

/// A renewal may cut off a page that takes long. Then the pages are halved, down to this.
const LEAST_PAGE: u32 = 125;

/// How many grants the next statement asks for.
#[derive(Debug)]
struct PageSize(u32);

impl PageSize {
    /// A page took too long. False: a smaller one would not help.
    fn halve(&mut self) -> bool {
        let halves = self.0 > LEAST_PAGE;
        if halves {
            self.0 /= 2;
        }
        halves
    }

    /// So many were found on a page. Whether more may follow: the page was full.
    fn found(&mut self, number: usize) -> bool {
        let is_full = u32::try_from(number).is_ok_and(|number| number >= self.0);
        self.0 = (self.0 * 2).min(PAGE);
        is_full
    }
}

pub(super) async fn look(mut link: Link, shared: &RenewShared, target: &str) {
    loop {
        let wanted = {
            let state = &mut *shared.state.lock();
            if state.closed {
                break;
            }
            state.look.take()
        };
        let Some((session, renewal)) = wanted else {
            link.rest(shared.look.notified()).await;
            continue;
        };
        if let Err(fault) = look_at(&mut link, &session, renewal).await {
            tracing::warn!(%target, error = %fault, "cannot look at the locks of the session, will try again");
            sleep_until(Moment::now() + MAX_PAUSE).await;
            shared.state.lock().look.get_or_insert((session, renewal));
        }
    }
    link.close().await;
}

async fn look_at(link: &mut Link, session: &Session, renewal: SessionRenewal) -> Result<(), Fault> {
    let timeout = link.operation_timeout();
    // A release of a caller's is answered or given up by then.
    let grace = timeout * 2;
    link.connect().await?;
    let id = session.grant.id;
    let (mut look, mut page) = (session.begin_look(Moment::now()), PageSize(PAGE));
    while session.grant.is_held() {
        let added = session.added();
        let read = async |conn: &mut dyn Store| conn.session_grants(id, &look.after, page.0).await;
        let found = match link.run("look at a session", timeout, read).await {
            // Keep the pages that were read. The next renewal starts a new look, because the connection is new.
            Err(_) if link.sent().is_none() => {
                link.connect().await?;
                continue;
            }
            Err(fault) if fault.is_silence() && page.halve() => {
                link.connect().await?;
                continue;
            }
            found => found?,
        };
        let more = page.found(found.len());
        let strays = session.compare(&mut look, &found, more, added, grace);
        let free: Vec<ReleaseParams> = strays
            .into_iter()
            .map(|(name, grant_id)| ReleaseParams {
                name,
                grant_id,
                fence: 0,
                was_queued: false,
            })
            .collect();
        if !free.is_empty() {
            let free = async |conn: &mut dyn Store| conn.lease_release(&free).await;
            link.run("release", timeout, free).await?;
        }
        if !more {
            session.end_look(&look, renewal);
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_not_the_last_one_unless_it_is_shorter_than_asked_for() {
        let mut page = PageSize(PAGE);
        assert!(page.halve());
        // (The next page is larger again.)
        assert!(page.found(1_000));
        assert_eq!(page.0, PAGE);
        assert!(page.found(2_000));
        assert!(!page.found(1_999));
        assert!(!page.found(0));
        while page.halve() {}
        assert!(page.found(LEAST_PAGE as usize));
        assert!(!page.found(2 * LEAST_PAGE as usize - 1));
    }
}
