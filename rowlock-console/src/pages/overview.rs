//! What needs a person, and how much there is.

use std::time::{Duration, Instant};

use futures_util::future::try_join;
use maud::{Markup, html};
use rowlock::{
    Error, NameFilter, NameInfo, NameState, RecordFilter, RecordInfo, RecordState, RunInfo,
    RunState, SessionInfo,
};

use super::jobs::is_overdue;
use super::records::state;
use crate::Shared;
use crate::content::{Content, Links};
use crate::text::{bytes, count, span, text, time};

/// The most entries of one kind that the page shows.
const SHOWN: usize = 20;

/// One more than is shown tells that there are more.
const PLUS_ONE: u32 = 21;

/// The most names and records that are counted.
const COUNTED: u32 = 1_000;

#[derive(Debug)]
pub(crate) struct Overview {
    quarantine: Option<Duration>,
    orphaned: Vec<NameInfo>,
    paused: Vec<NameInfo>,
    undecided: Vec<RecordInfo>,
    /// Jobs that have failed or take too long, with whether they do.
    jobs: Vec<(RunInfo, bool)>,
    expiring: Vec<SessionInfo>,
    counts: Counts,
    /// Grants and waits a second.
    rates: Option<[String; 2]>,
}

#[derive(Debug)]
struct Counts {
    names: usize,
    has_more_names: bool,
    waiters: u64,
    records: usize,
    has_more_records: bool,
    jobs: usize,
    sessions: usize,
}

pub(crate) async fn read(shared: &Shared) -> Result<Overview, Error> {
    let admin = shared.rowlock.admin();
    let names = async {
        let of = |state, limit| NameFilter::new().state(state).limit(limit);
        let quarantine = admin.quarantine_left().await?;
        let orphaned = admin.names(&of(NameState::Orphaned, PLUS_ONE)).await?.items;
        let began = Instant::now();
        let used = admin.names(&of(NameState::InUse, COUNTED)).await?;
        // A name in use may be paused. So both lists read the same rows, unless there are more names in use.
        let paused = if used.items.len() < COUNTED as usize {
            let paused = used.items.iter().filter(|info| info.is(NameState::Paused));
            paused.cloned().collect()
        } else {
            admin.names(&of(NameState::Paused, PLUS_ONE)).await?.items
        };
        Ok::<_, Error>((quarantine, orphaned, paused, (began, used)))
    };
    let idempotency = shared.rowlock.idempotency();
    let others = async {
        Ok::<_, Error>((
            idempotency.list_undecided().await?,
            idempotency
                .list(&RecordFilter::new().limit(COUNTED))
                .await?,
            admin.runs().await?,
            admin.sessions().await?,
        ))
    };
    // Each of them has a connection of its own. All at a time would leave none for the other pages.
    let (names, others) = try_join(names, others).await?;
    let (quarantine, orphaned, paused, (began, used)) = names;
    let (mut undecided, records, jobs, mut sessions) = others;
    undecided.retain(|info| info.state != RecordState::Lapsed);
    let counts = Counts {
        names: used.items.len(),
        has_more_names: used.next.is_some(),
        waiters: used.items.iter().map(|info| u64::from(info.waiters)).sum(),
        records: records.items.len(),
        has_more_records: records.next.is_some(),
        jobs: jobs.len(),
        sessions: sessions.len(),
    };
    // A name at the end of a list that is cut comes and goes without a grant.
    let is_whole = used.next.is_none();
    let rates = is_whole.then(|| shared.rates.look(&used.items, began));
    let late = shared.longest.late(&sessions);
    sessions.retain(|session| late.contains(&session.id));
    Ok(Overview {
        quarantine,
        orphaned,
        paused,
        undecided,
        jobs: troubled(shared, jobs).await?,
        expiring: sessions,
        counts,
        rates: rates.flatten(),
    })
}

/// The jobs whose last run has failed, was abandoned, or takes too long.
async fn troubled(shared: &Shared, jobs: Vec<RunInfo>) -> Result<Vec<(RunInfo, bool)>, Error> {
    let mut troubled = Vec::new();
    for last in jobs {
        let is_overdue = match last.state {
            RunState::Failed | RunState::Abandoned => false,
            RunState::Running => is_overdue(&shared.last_runs.of(shared, last.clone()).await?),
            _ => continue,
        };
        if is_overdue || last.state != RunState::Running {
            troubled.push((last, is_overdue));
        }
        if troubled.len() > SHOWN {
            break;
        }
    }
    Ok(troubled)
}

impl Overview {
    fn is_quiet(&self) -> bool {
        let lists = [
            self.orphaned.is_empty(),
            self.paused.is_empty(),
            self.undecided.is_empty(),
            self.jobs.is_empty(),
            self.expiring.is_empty(),
        ];
        self.quarantine.is_none() && lists.into_iter().all(|is_empty| is_empty)
    }
}

impl Content for Overview {
    fn html(&self, links: Links<'_>) -> Markup {
        html! {
            section aria-labelledby="needs" {
                h2 #needs { "Needs a person" }
                @if self.is_quiet() { p.notice.good { "Nothing needs a person." } }
                @if let Some(left) = self.quarantine {
                    p.notice.bad {
                        "The database is in quarantine for another " (span(left)) ": it grants nothing. "
                        (links.act("end-quarantine", &[], "End the quarantine"))
                    }
                }
                (list("Locks that have waiters and no holder", &self.orphaned, |info| html! {
                    (links.lock(&info.name)) ": " (count(info.waiters.into(), "waiter", "waiters"))
                }))
                (list("Paused names", &self.paused, |info| html! {
                    (links.lock(&info.name))
                    @if let Some(pause) = &info.pause { ": " (text(&pause.to_string())) }
                }))
                (list("Records that wait for a decision", &self.undecided, |info| html! {
                    (state(info.state)) ": " (bytes(info.record.scope())) " / " (links.record(&info.record))
                }))
                (list("Jobs that failed or take too long", &self.jobs, |(run, is_overdue)| html! {
                    (links.lock(&run.name)) ": "
                    @if *is_overdue { strong.bad { "overdue" } ", it runs since " (time(run.began_at)) }
                    @else {
                        strong.bad { (run.state) } ", began " (time(run.began_at))
                        @if !run.message.is_empty() { ": " (text(&run.message)) }
                    }
                }))
                (list("Sessions that were not renewed in time", &self.expiring, |session| html! {
                    (text(&session.holder)) ": expires in " (span(session.remaining))
                    ", with " (count(session.locks, "lock", "locks"))
                }))
            }
            section aria-labelledby="counts" {
                h2 #counts { "How much there is" }
                (self.counts.html(links))
                @if let Some([grants, waits]) = &self.rates {
                    p { "In the last minute, the looks have seen " (grants) " grants and " (waits) " waits a second." }
                }
                p.actions {
                    @if self.quarantine.is_none() { (links.act("quarantine", &[], "Begin a quarantine")) }
                }
            }
        }
    }
}

/// The first entries of a list, if it has any.
fn list<T>(title: &str, items: &[T], item: impl Fn(&T) -> Markup) -> Markup {
    html! {
        @if !items.is_empty() {
            h3 { (title) }
            ul.list {
                @for one in items.iter().take(SHOWN) { li { (item(one)) } }
                @if items.len() > SHOWN { li { "and more" } }
            }
        }
    }
}

impl Counts {
    fn html(&self, links: Links<'_>) -> Markup {
        // One call has found few names in the rows that it reads.
        let is_part = self.has_more_names && self.names < COUNTED as usize;
        let among = if is_part {
            " among the first 5,000 rows"
        } else {
            ""
        };
        html! {
            dl.counts {
                (number(&format!("Names in use{among}"), &bounded(self.names, self.has_more_names), &links.to("/locks")))
                (number(&format!("Waiters{among}"), &grouped(self.waiters, self.has_more_names), &links.to("/locks?state=awaited")))
                (number("Sessions", &bounded(self.sessions, false), &links.to("/sessions")))
                (number("Jobs", &bounded(self.jobs, false), &links.to("/jobs")))
                (number("Records", &bounded(self.records, self.has_more_records), &links.to("/records")))
            }
        }
    }
}

fn number(what: &str, number: &str, link: &str) -> Markup {
    html! { div { dt { a href=(link) { (what) } } dd { (number) } } }
}

fn bounded(number: usize, has_more: bool) -> String {
    grouped(number as u64, has_more)
}

/// `1,000`, or `1,000+` when there are more.
fn grouped(number: u64, has_more: bool) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if has_more {
        grouped.push('+');
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_people() {
        assert_eq!(grouped(0, false), "0");
        assert_eq!(grouped(999, false), "999");
        assert_eq!(grouped(1_000, true), "1,000+");
        assert_eq!(grouped(1_234_567, false), "1,234,567");
    }
}
