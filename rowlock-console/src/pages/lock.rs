//! One name: its holders, its queue, its last runs.

use maud::{Markup, html};
use rowlock::{Error, Kind, LockInfo, Mode, Name, NameInfo, RunInfo, WaiterInfo};

use super::chart::{chart, runs};
use super::columns;
use super::locks::{kind, left, since};
use crate::Shared;
use crate::content::{Content, Links};
use crate::text::{count, span, text, time};

/// The most waiters and holders that the page shows.
const SHOWN: usize = 200;

#[derive(Debug)]
pub(crate) struct Lock {
    name: Name,
    info: Option<NameInfo>,
    queue: Vec<WaiterInfo>,
    runs: Vec<RunInfo>,
}

pub(crate) async fn info_of(shared: &Shared, name: &Name) -> Result<Option<NameInfo>, Error> {
    shared.rowlock.admin().name(name.as_str()).await
}

pub(crate) async fn read(shared: &Shared, name: &Name) -> Result<Lock, Error> {
    let admin = shared.rowlock.admin();
    Ok(Lock {
        name: name.clone(),
        info: admin.name(name.as_str()).await?,
        queue: admin.queue(name.as_str()).await?,
        runs: admin.runs_of(name.as_str()).await?,
    })
}

impl Content for Lock {
    fn html(&self, links: Links<'_>) -> Markup {
        let name = [("name", self.name.as_str())];
        let held = self.info.as_ref().map_or(&[][..], |info| &info.holders);
        let is_used = !held.is_empty() || !self.queue.is_empty();
        html! {
            @match &self.info {
                Some(info) => {
                    p.about {
                        span.kind { (heading(info.kind)) } " · last fence " (info.fence)
                        (taken(info.kind, held))
                    }
                    p.actions {
                        @if is_used { (links.act("free", &name, "Free it")) }
                        @if matches!(info.kind, Kind::Semaphore { .. }) {
                            (links.act("capacity", &name, "Change its capacity"))
                        }
                        @if !is_used && info.pause.is_none() { (links.act("forget", &name, "Forget it")) }
                        (links.act("pause", &name, "Pause it"))
                        @if info.pause.is_some() { (links.act("resume", &name, "Resume it")) }
                    }
                    @if let Some(pause) = &info.pause { p { strong { "It is " (text(&pause.to_string())) } } }
                }
                None => {
                    p { "The database has no row of this name: it was not used for ten days, or never." }
                    p.actions { (links.act("pause", &name, "Pause it")) }
                }
            }
            h2 { "Holders" }
            @if held.is_empty() { p { "Nobody holds it." } } @else { (holders(held, links)) }
            h2 { "Queue" }
            @if self.queue.is_empty() { p { "Nobody waits for it." } } @else { (queue(&self.queue)) }
            h2 { "Last runs" }
            @if self.runs.is_empty() {
                p { "No run of work under this name was recorded." }
            } @else {
                (chart(&self.runs))
                (runs(&self.runs))
            }
        }
    }
}

/// The kind, with a capital letter.
fn heading(of: Kind) -> String {
    let kind = kind(of);
    let (first, rest) = kind.split_at(1);
    first.to_uppercase() + rest
}

/// How much of a semaphore is taken.
fn taken(kind: Kind, holders: &[LockInfo]) -> String {
    let Kind::Semaphore { capacity, .. } = kind else {
        return String::new();
    };
    let weight = |held: &LockInfo| match held.mode {
        Mode::Permit { weight, .. } => u64::from(weight),
        _ => 1,
    };
    let sum: u64 = holders.iter().map(weight).sum();
    format!(" · {sum} of {capacity} permits are taken")
}

fn holders(holders: &[LockInfo], links: Links<'_>) -> Markup {
    html! {
        table {
            (columns(&["Holder", "Held as", "Fence", "Since", "Expires in"]))
            tbody {
                @for held in holders.iter().take(SHOWN) {
                    tr data-key=(held.grant_id) {
                        td data-label="Holder" { (text(&held.holder)) }
                        td data-label="Held as" { (held.mode) }
                        td data-label="Fence" { (held.fence) }
                        td data-label="Since" { (since(held)) }
                        td data-label="Expires in" { (left(held, links)) }
                    }
                }
            }
        }
        @if holders.len() > SHOWN { p { "And " (holders.len() - SHOWN) " more." } }
    }
}

fn queue(queue: &[WaiterInfo]) -> Markup {
    html! {
        table {
            (columns(&["Place", "Waiter", "Since", "Waits for"]))
            tbody {
                @for (place, waiter) in queue.iter().take(SHOWN).enumerate() {
                    tr data-key=(waiter.position) {
                        td data-label="Place" { (place + 1) }
                        td data-label="Waiter" { (text(&waiter.holder)) }
                        td data-label="Since" { (time(waiter.joined_at)) }
                        td data-label="Waits for" { (span(waiter.waited)) }
                    }
                }
            }
        }
        @if queue.len() > SHOWN {
            @let rest = queue.len() - SHOWN;
            p { "And " (count(rest as u64, "other", "others")) "." }
        }
    }
}
