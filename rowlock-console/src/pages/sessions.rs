//! Sessions of clients.

use std::time::Duration;

use maud::{Markup, html};
use rowlock::{Error, SessionInfo};

use super::columns;
use crate::Shared;
use crate::content::{Content, Links};
use crate::text::{count, span, text, time};

/// The most sessions that the page shows.
const SHOWN: usize = 500;

/// A session with less than this left was not renewed in time. (A client renews its session after a third of its TTL,
/// which is 30 s unless it was set.)
const SOON: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Sessions(Vec<SessionInfo>);

pub(crate) async fn read(shared: &Shared) -> Result<Sessions, Error> {
    Ok(Sessions(shared.rowlock.admin().sessions().await?))
}

/// Whether a session expires soon, unless it is renewed after all.
pub(crate) fn expires_soon(session: &SessionInfo) -> bool {
    session.remaining < SOON
}

impl Content for Sessions {
    fn html(&self, links: Links<'_>) -> Markup {
        html! {
            p { (count(self.0.len() as u64, "live session", "live sessions")) ", the oldest first." }
            @if !self.0.is_empty() {
                table {
                    (columns(&["Client", "Session", "Opened", "Expires in", "Locks", "Action"]))
                    tbody { @for session in self.0.iter().take(SHOWN) { (row(session, links)) } }
                }
            }
            @if self.0.len() > SHOWN { p { "And " (self.0.len() - SHOWN) " more." } }
        }
    }
}

fn row(session: &SessionInfo, links: Links<'_>) -> Markup {
    let id = session.id.to_string();
    html! {
        tr data-key=(id) {
            td data-label="Client" { (text(&session.holder)) }
            td data-label="Session" { code { (id) } }
            td data-label="Opened" { (time(session.opened_at)) }
            td data-label="Expires in" {
                @let left = span(session.remaining);
                @if expires_soon(session) { strong.bad { (left) } } @else { (left) }
            }
            td data-label="Locks" { (session.locks) }
            td data-label="Action" { (links.act("end-session", &[("id", &id)], "End it")) }
        }
    }
}
