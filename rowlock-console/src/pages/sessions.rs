//! Sessions of clients.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use maud::{Markup, html};
use parking_lot::Mutex;
use rowlock::{Error, SessionInfo};
use uuid::Uuid;

use super::columns;
use crate::Shared;
use crate::content::{Content, Links};
use crate::text::{count, span, text, time};

/// The most sessions that the page shows.
const SHOWN: usize = 500;

#[derive(Debug)]
pub(crate) struct Sessions {
    all: Vec<SessionInfo>,
    late: HashSet<Uuid>,
}

pub(crate) async fn read(shared: &Shared) -> Result<Sessions, Error> {
    let all = shared.rowlock.admin().sessions().await?;
    let late = shared.longest.late(&all);
    Ok(Sessions { all, late })
}

/// The longest time that each session had left, as far as the console has seen. A client renews its session after a
/// third of its TTL, so that a session with less than half of that left was not renewed in time.
#[derive(Debug, Default)]
pub(crate) struct Longest(Mutex<HashMap<Uuid, Duration>>);

impl Longest {
    /// The sessions that were not renewed in time.
    pub(crate) fn late(&self, sessions: &[SessionInfo]) -> HashSet<Uuid> {
        let left = sessions
            .iter()
            .map(|session| (session.id, session.remaining));
        self.late_of(&left.collect())
    }

    fn late_of(&self, left: &HashMap<Uuid, Duration>) -> HashSet<Uuid> {
        let mut longest = self.0.lock();
        longest.retain(|id, _| left.contains_key(id));
        let mut late = HashSet::new();
        for (id, left) in left {
            let most = longest.entry(*id).or_default();
            *most = (*most).max(*left);
            if *left < *most / 2 {
                late.insert(*id);
            }
        }
        late
    }
}

impl Content for Sessions {
    fn html(&self, links: Links<'_>) -> Markup {
        html! {
            p { (count(self.all.len() as u64, "live session", "live sessions")) ", the oldest first." }
            @if !self.all.is_empty() {
                table {
                    (columns(links.columns(&["Client", "Session", "Opened", "Expires in", "Locks", "Action"])))
                    tbody { @for session in self.all.iter().take(SHOWN) { (self.row(session, links)) } }
                }
            }
            @if self.all.len() > SHOWN { p { "And " (self.all.len() - SHOWN) " more." } }
        }
    }
}

impl Sessions {
    fn row(&self, session: &SessionInfo, links: Links<'_>) -> Markup {
        let id = session.id.to_string();
        html! {
            tr id=(id) data-key=(id) {
                td data-label="Client" { (text(&session.holder)) }
                td data-label="Session" { code { (id) } }
                td data-label="Opened" { (time(session.opened_at)) }
                td data-label="Expires in" {
                    @let left = span(session.remaining);
                    @if self.late.contains(&session.id) { strong.bad { (left) } } @else { (left) }
                }
                td data-label="Locks" { (session.locks) }
                @if links.acts {
                    td data-label="Action" { (links.act("end-session", &[("id", &id)], "End it")) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_late_when_half_of_its_time_is_gone() {
        let longest = Longest::default();
        let (quick, slow) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let seconds = |quick_left, slow_left| {
            let left = [(quick, quick_left), (slow, slow_left)];
            left.map(|(id, left)| (id, Duration::from_secs(left)))
                .into()
        };
        assert_eq!(longest.late_of(&seconds(3, 30)), HashSet::new());
        assert_eq!(longest.late_of(&seconds(2, 15)), HashSet::new());
        assert_eq!(longest.late_of(&seconds(3, 14)), [slow].into());
        assert_eq!(longest.late_of(&seconds(1, 30)), [quick].into());
        // One that has ended is forgotten.
        assert_eq!(longest.late_of(&HashMap::new()), HashSet::new());
        assert_eq!(longest.late_of(&seconds(1, 14)), HashSet::new());
    }
}
