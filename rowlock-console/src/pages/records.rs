//! Idempotency records.

use std::time::Duration;

use maud::{Markup, html};
use rowlock::{Error, Page, RecordFilter, RecordInfo, RecordState};

use super::{PAGE, choice, columns, more, none};
use crate::Shared;
use crate::content::{Content, Links};
use crate::fields::{Fields, query};
use crate::text::{bytes, span, text, time};

/// All states.
const STATES: [RecordState; 7] = [
    RecordState::Running,
    RecordState::Done,
    RecordState::Unknown,
    RecordState::Poisoned,
    RecordState::Lapsed,
    RecordState::Free,
    RecordState::Expired,
];

/// The parameters of the page.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RecordsView {
    scope: String,
    key: String,
    /// Whether scope and key are in hexadecimal.
    is_hex: bool,
    state: Option<RecordState>,
    from: String,
}

#[derive(Debug)]
pub(crate) struct Records {
    view: RecordsView,
    /// `None`: the filter cannot be read.
    page: Option<Page<RecordInfo>>,
}

impl RecordsView {
    pub(crate) fn parse(fields: &Fields) -> Option<Self> {
        let state = match fields.get("state") {
            "" => None,
            state => Some(state.parse().ok()?),
        };
        let view = Self {
            scope: fields.get("scope").into(),
            key: fields.get("key").into(),
            is_hex: fields.get("hex") == "on",
            state,
            from: fields.get("from").into(),
        };
        let is_from = hex::decode(&view.from).is_ok_and(|from| from.len() <= 1_024);
        is_from.then_some(view)
    }

    /// The scope and the begin of the keys. An error is for people.
    fn bytes(&self) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
        let bytes = |text: &str, why| {
            if self.is_hex {
                hex::decode(text).map_err(|_| why)
            } else {
                Ok(text.into())
            }
        };
        let scope = bytes(&self.scope, "The scope is not in hexadecimal.")?;
        let key = bytes(&self.key, "The begin of the keys is not in hexadecimal.")?;
        Ok((scope, key))
    }

    /// Whether it shows all records, from the first one.
    fn is_all(&self) -> bool {
        let texts = [&self.scope, &self.key, &self.from];
        self.state.is_none() && texts.into_iter().all(String::is_empty)
    }

    pub(crate) fn path(&self) -> String {
        self.path_from(&self.from)
    }

    fn path_from(&self, from: &str) -> String {
        let fields = [
            ("scope", self.scope.as_str()),
            ("key", &self.key),
            ("hex", if self.is_hex { "on" } else { "" }),
            ("state", self.state.map_or("", RecordState::name)),
            ("from", from),
        ];
        let path = format!("/records?{}", query(&fields));
        path.trim_end_matches('?').into()
    }

    pub(crate) fn filter(&self, action: &str) -> Markup {
        let state = self.state.map_or("", RecordState::name);
        html! {
            form.filter method="get" action=(action) {
                label { "Scope " input name="scope" value=(self.scope) maxlength="510" autocomplete="off"; }
                label { "Keys that begin with " input name="key" value=(self.key) maxlength="510" autocomplete="off"; }
                label { input type="checkbox" name="hex" value="on" checked[self.is_hex]; " both in hexadecimal" }
                label { "State " select name="state" {
                    (choice("", state, "any"))
                    @for one in STATES { (choice(one.name(), state, one.name())) }
                } }
                button { "Show" }
            }
        }
    }

    pub(crate) async fn read(&self, shared: &Shared) -> Result<Records, Error> {
        let view = self.clone();
        let Ok((scope, key)) = self.bytes() else {
            return Ok(Records { view, page: None });
        };
        let mut filter = RecordFilter::new().limit(PAGE);
        if !scope.is_empty() {
            filter = filter.scope(scope, key);
        }
        if let Some(state) = self.state {
            filter = filter.state(state);
        }
        let from = Some(self.from.clone()).filter(|from| !from.is_empty());
        let page = shared
            .rowlock
            .idempotency()
            .list(&filter.from(from))
            .await?;
        Ok(Records {
            view,
            page: Some(page),
        })
    }
}

/// The word for a state, which stands out if a person has to decide.
pub(crate) fn state(state: RecordState) -> Markup {
    let is_bad = matches!(state, RecordState::Unknown | RecordState::Poisoned);
    html! { @if is_bad { strong.bad { (state) } } @else { (state) } }
}

/// How long the record stays in its state, if nothing happens.
pub(crate) fn lasts(info: &RecordInfo) -> Option<Duration> {
    match info.state {
        RecordState::Running => info.lease_remaining,
        RecordState::Done => info.retained_for,
        RecordState::Expired | RecordState::Free => info.remembered_for,
        _ => None,
    }
}

impl Content for Records {
    fn html(&self, links: Links<'_>) -> Markup {
        let Some(page) = &self.page else {
            let why = self.view.bytes().err().unwrap_or_default();
            return html! { p.notice.bad role="alert" { (why) } };
        };
        let next = page.next.as_deref();
        let next = next.map(|next| links.to(&self.view.path_from(next)));
        let first = (!self.view.from.is_empty()).then(|| links.to(&self.view.path_from("")));
        html! {
            @if !self.view.key.is_empty() && self.view.scope.is_empty() {
                p.notice.bad { "A key is looked for within a scope: give the scope, too. These are all records." }
            }
            @if page.items.is_empty() {
                (none(self.view.is_all(), page.next.as_deref(), "There are no records.", "No such records"))
            } @else {
                table {
                    (columns(&["Scope", "Key", "State", "Holder", "Last attempt", "For another"]))
                    tbody { @for info in &page.items { (row(info, links)) } }
                }
            }
            (more(first.as_deref(), next.as_deref(), "scope and key"))
        }
    }
}

fn row(info: &RecordInfo, links: Links<'_>) -> Markup {
    let (scope, key) = (info.record.scope(), info.record.key());
    html! {
        tr data-key={ (hex::encode(scope)) "/" (hex::encode(key)) } {
            td data-label="Scope" { (bytes(scope)) }
            td data-label="Key" { (links.record(&info.record)) }
            td data-label="State" { (state(info.state)) }
            td data-label="Holder" { (text(&info.holder)) }
            td data-label="Last attempt" { (time(info.attempted_at)) }
            td data-label="For another" { @match lasts(info) { Some(left) => (span(left)), None => "–" } }
        }
    }
}
