//! Names: locks, read/write locks and semaphores.

use std::cmp::Reverse;
use std::time::Duration;

use maud::{Markup, html};
use rowlock::{Error, Kind, LockInfo, NameFilter, NameInfo, NameState, Page};

use super::{PAGE, choice, columns, more, none, prefix};
use crate::Shared;
use crate::content::{Content, Links};
use crate::fields::{Fields, query};
use crate::text::{between, count, span, text, time};

/// The most calls for a page: one that finds no name in the rows that it reads is followed by the next one.
const CALLS: usize = 20;

/// The parameters of the page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct LocksView {
    prefix: String,
    state: String,
    sort: String,
    from: String,
}

#[derive(Debug)]
pub(crate) struct Locks {
    view: LocksView,
    page: Page<NameInfo>,
}

impl LocksView {
    pub(crate) fn parse(fields: &Fields) -> Option<Self> {
        let view = Self {
            prefix: fields.get("prefix").into(),
            state: fields.get("state").into(),
            sort: fields.get("sort").into(),
            from: fields.get("from").into(),
        };
        let is_state =
            ["", "held", "awaited", "orphaned", "paused", "all"].contains(&view.state.as_str());
        let is_sort = ["", "age", "waiters"].contains(&view.sort.as_str());
        let is_from = hex::decode(&view.from).is_ok_and(|from| from.len() <= 1_024);
        (is_state && is_sort && is_from).then_some(view)
    }

    pub(crate) fn path(&self) -> String {
        self.path_from(&self.from)
    }

    fn path_from(&self, from: &str) -> String {
        let fields = [
            ("prefix", self.prefix.as_str()),
            ("state", &self.state),
            ("sort", &self.sort),
            ("from", from),
        ];
        let path = format!("/locks?{}", query(&fields));
        path.trim_end_matches('?').into()
    }

    pub(crate) fn filter(&self, action: &str) -> Markup {
        html! {
            form.filter method="get" action=(action) {
                (prefix(&self.prefix))
                label { "State " select name="state" {
                    (choice("", &self.state, "in use: held, waited for or paused"))
                    (choice("held", &self.state, "held"))
                    (choice("awaited", &self.state, "waited for"))
                    (choice("orphaned", &self.state, "orphaned"))
                    (choice("paused", &self.state, "paused"))
                    (choice("all", &self.state, "any, also free"))
                } }
                label { "Sort this page by " select name="sort" {
                    (choice("", &self.sort, "name"))
                    (choice("age", &self.sort, "age, the oldest first"))
                    (choice("waiters", &self.sort, "waiters, the most first"))
                } }
                button { "Show" }
            }
        }
    }

    pub(crate) async fn read(&self, shared: &Shared) -> Result<Locks, Error> {
        let filter = NameFilter::new().prefix(&self.prefix).limit(PAGE);
        let filter = match self.state.as_str() {
            "held" => filter.state(NameState::Held),
            "awaited" => filter.state(NameState::Awaited),
            "orphaned" => filter.state(NameState::Orphaned),
            "paused" => filter.state(NameState::Paused),
            "all" => filter,
            _ => filter.state(NameState::InUse),
        };
        let from = Some(self.from.clone()).filter(|from| !from.is_empty());
        let mut filter = filter.from(from);
        let mut page = shared.rowlock.admin().names(&filter).await?;
        for _ in 1..CALLS {
            if !page.items.is_empty() || page.next.is_none() {
                break;
            }
            filter = filter.from(page.next);
            page = shared.rowlock.admin().names(&filter).await?;
        }
        match self.sort.as_str() {
            "age" => page.items.sort_by_key(|info| {
                let since = info.holders.iter().map(|held| held.acquired_at).min();
                (since.is_none(), since)
            }),
            "waiters" => page.items.sort_by_key(|info| Reverse(info.waiters)),
            _ => {}
        }
        let view = self.clone();
        Ok(Locks { view, page })
    }
}

/// The word for what a name stands for.
pub(crate) fn kind(kind: Kind) -> String {
    match kind {
        Kind::Lock => "lock".into(),
        Kind::ReadWrite => "read/write lock".into(),
        Kind::Semaphore { capacity, .. } => format!("semaphore of {capacity}"),
        other => other.to_string(),
    }
}

/// How long it has been held.
fn held_for(held: &LockInfo) -> Duration {
    let now = held.expires_at - held.remaining;
    between(held.acquired_at, now)
}

/// Since when it has been held, and for how long.
pub(crate) fn since(held: &LockInfo) -> Markup {
    html! { (time(held.acquired_at)) div.sub { "for " (span(held_for(held))) } }
}

/// What is left of a lease.
pub(crate) fn left(held: &LockInfo, links: Links<'_>) -> Markup {
    html! {
        (span(held.remaining))
        @if let Some(id) = held.session {
            div.sub { "with " a href=(links.to(&format!("/sessions#{id}"))) { "its session" } }
        }
    }
}

impl Content for Locks {
    fn html(&self, links: Links<'_>) -> Markup {
        let next = self.page.next.as_deref();
        let next = next.map(|next| links.to(&self.view.path_from(next)));
        let first = (!self.view.from.is_empty()).then(|| links.to(&self.view.path_from("")));
        html! {
            @if self.page.items.is_empty() {
                (self.nothing())
            } @else {
                table {
                    @let all = ["Name", "Kind", "Holder", "Held since", "Expires in", "Waiters", "Action"];
                    (columns(links.columns(&all)))
                    tbody { @for info in &self.page.items { (row(info, links)) } }
                }
            }
            (more(first.as_deref(), next.as_deref(), "name"))
        }
    }
}

impl Locks {
    /// Why there is no table.
    fn nothing(&self) -> Markup {
        let view = &self.view;
        let is_all = view.prefix.is_empty() && view.state.is_empty() && view.from.is_empty();
        none(
            is_all,
            self.page.next.as_deref(),
            "No name is held, waited for or paused.",
            "No such names",
        )
    }
}

/// How many hold it beside the first one. (A list has 100 holders of a name at most.)
fn others(holders: &[LockInfo]) -> String {
    match holders.len() {
        100.. => "and 99 others or more".into(),
        more => format!("and {}", count(more as u64 - 1, "other", "others")),
    }
}

fn row(info: &NameInfo, links: Links<'_>) -> Markup {
    let name = info.name.as_str();
    let first = info.holders.iter().min_by_key(|held| held.acquired_at);
    html! {
        tr data-key=(name) {
            td data-label="Name" {
                (links.lock(&info.name))
                @if let Some(pause) = &info.pause { div.sub { (text(&pause.to_string())) } }
            }
            td data-label="Kind" { (kind(info.kind)) }
            td data-label="Holder" {
                @match first {
                    Some(held) => (text(&held.holder)),
                    None if info.is(NameState::Orphaned) => { strong.bad { "nobody" } }
                    None => "nobody",
                }
                @if info.holders.len() > 1 { div.sub { (others(&info.holders)) } }
                div.sub { "fence " (info.fence) }
            }
            td data-label="Held since" {
                @if let Some(held) = first { (since(held)) } @else { "–" }
            }
            td data-label="Expires in" { @if let Some(held) = first { (left(held, links)) } @else { "–" } }
            td data-label="Waiters" {
                (info.waiters)
            }
            @if links.acts {
                td data-label="Action" {
                    @if first.is_some() || info.waiters > 0 { (links.act("free", &[("name", name)], "Free it")) }
                }
            }
        }
    }
}
