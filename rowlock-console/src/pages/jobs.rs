//! Jobs: names under which runs of work were recorded.

use std::collections::HashMap;

use maud::{Markup, html};
use parking_lot::Mutex;
use rowlock::{Error, Name, RunInfo, RunState};

use super::chart::{chart, length, state};
use super::{PAGE, columns, more, none, prefix};
use crate::Shared;
use crate::content::{Content, Links};
use crate::fields::{Fields, query};
use crate::text::{text, time};

/// The parameters of the page.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct JobsView {
    prefix: String,
    /// The page begins with this name, or the next one.
    from: String,
}

#[derive(Debug)]
pub(crate) struct Jobs {
    view: JobsView,
    /// The last runs of each.
    runs: Vec<Vec<RunInfo>>,
    next: Option<String>,
}

/// The last runs of jobs, as they were read: a job whose last run is the same one has no other runs.
#[derive(Debug, Default)]
pub(crate) struct LastRuns(Mutex<HashMap<Name, Vec<RunInfo>>>);

/// The most jobs whose runs are kept in memory.
const KEPT: usize = 1_000;

impl LastRuns {
    /// The last runs of the job whose last run is `last`.
    pub(crate) async fn of(&self, shared: &Shared, last: RunInfo) -> Result<Vec<RunInfo>, Error> {
        let kept = self.kept(&last);
        let mut runs = match kept {
            Some(runs) => runs,
            None => shared.rowlock.admin().runs_of(last.name.as_str()).await?,
        };
        // (It may have ended since the list was read.)
        if let Some(first) = runs.first_mut()
            && first.fence == last.fence
            && first.state == last.state
        {
            *first = last;
        }
        if let Some(last) = runs.first() {
            let mut all = self.0.lock();
            if all.len() >= KEPT {
                all.clear();
            }
            all.insert(last.name.clone(), runs.clone());
        }
        Ok(runs)
    }

    fn kept(&self, last: &RunInfo) -> Option<Vec<RunInfo>> {
        let all = self.0.lock();
        let runs = all.get(&last.name)?;
        let is = |run: &RunInfo| (run.fence, run.began_at, run.state);
        (is(runs.first()?) == is(last)).then(|| runs.clone())
    }
}

/// Whether a run takes more than twice as long as the longest one before it that has succeeded.
pub(crate) fn is_overdue(runs: &[RunInfo]) -> bool {
    let Some((last, before)) = runs.split_first() else {
        return false;
    };
    let done = before
        .iter()
        .filter(|run| run.state == RunState::Succeeded)
        .filter_map(|run| run.took);
    let longest = done.max();
    last.state == RunState::Running
        && longest.is_some_and(|longest| last.took.is_some_and(|took| took > 2 * longest))
}

impl JobsView {
    pub(crate) fn parse(fields: &Fields) -> Self {
        Self {
            prefix: fields.get("prefix").into(),
            from: fields.get("from").into(),
        }
    }

    pub(crate) fn path(&self) -> String {
        self.path_from(&self.from)
    }

    fn path_from(&self, from: &str) -> String {
        let fields = [("prefix", self.prefix.as_str()), ("from", from)];
        let path = format!("/jobs?{}", query(&fields));
        path.trim_end_matches('?').into()
    }

    pub(crate) fn filter(&self, action: &str) -> Markup {
        html! {
            form.filter method="get" action=(action) {
                (prefix(&self.prefix))
                button { "Show" }
            }
        }
    }

    pub(crate) async fn read(&self, shared: &Shared) -> Result<Jobs, Error> {
        let all = shared.rowlock.admin().runs().await?;
        let is_asked = |run: &RunInfo| {
            let name = run.name.as_str();
            name.starts_with(&self.prefix) && name >= self.from.as_str()
        };
        let mut lasts = all.into_iter().filter(is_asked);
        let mut runs = Vec::new();
        for last in lasts.by_ref().take(PAGE as usize) {
            runs.push(shared.last_runs.of(shared, last).await?);
        }
        let next = lasts.next().map(|run| run.name.as_str().to_owned());
        let view = self.clone();
        Ok(Jobs { view, runs, next })
    }
}

impl Content for Jobs {
    fn html(&self, links: Links<'_>) -> Markup {
        let next = self.next.as_deref();
        let next = next.map(|next| links.to(&self.view.path_from(next)));
        let first = (!self.view.from.is_empty()).then(|| links.to(&self.view.path_from("")));
        html! {
            @if self.runs.is_empty() {
                @let is_all = self.view.prefix.is_empty() && self.view.from.is_empty();
                (none(is_all, None, "There are no jobs.", "No such jobs"))
                p.hint { "A name is a job when runs of work under it are recorded." }
            } @else {
                table {
                    (columns(&["Job", "Last run", "Began", "Took", "Holder", "Last 20 runs"]))
                    tbody {
                        @for runs in &self.runs {
                            @if let Some(last) = runs.first() {
                                tr data-key=(last.name) {
                                    td data-label="Job" { (links.lock(&last.name)) }
                                    td data-label="Last run" {
                                        (state(last))
                                        @if is_overdue(runs) { ", " strong.bad { "overdue" } }
                                        @if !last.message.is_empty() { div.sub { (text(&last.message)) } }
                                    }
                                    td data-label="Began" { (time(last.began_at)) }
                                    td data-label="Took" { (length(last)) }
                                    td data-label="Holder" { (text(&last.holder)) }
                                    td data-label="Last 20 runs" { (chart(runs)) }
                                }
                            }
                        }
                    }
                }
                p.hint {
                    "A bar is as high as its run was long. A run that failed or was abandoned has a cross. A run is \
                     overdue when it takes more than twice as long as the longest of these that has succeeded."
                }
            }
            (more(first.as_deref(), next.as_deref(), "name"))
        }
    }
}
