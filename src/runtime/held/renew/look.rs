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

pub(super) async fn look(mut link: Link, shared: &RenewShared, target: &str) {
    loop {
        let wanted = {
            let state = &mut *shared.state();
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
            shared.state().look.get_or_insert((session, renewal));
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
    let (mut look, mut page) = (session.begin_look(Moment::now()), PAGE);
    while session.grant.is_held() {
        let added = session.added();
        let read = async |conn: &mut dyn Store| conn.session_grants(id, &look.after, page).await;
        let found = match link.run("look at a session", timeout, read).await {
            // What was read before stays read: after the next renewal, which has another connection, there is a new
            // look.
            Err(_) if link.sent().is_none() => {
                link.connect().await?;
                continue;
            }
            Err(fault) if fault.is_silence() && page > LEAST_PAGE => {
                page /= 2;
                link.connect().await?;
                continue;
            }
            found => found?,
        };
        page = (page * 2).min(PAGE);
        let more = u32::try_from(found.len()) == Ok(page);
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
