//! The content of a page: how it is read, and the links in it.

use maud::{Markup, html};
use rowlock::{Name, RecordKey};

use crate::fields::{Fields, query};
use crate::text;
use crate::viewer::{Viewer, href};

/// What a page shows of the database at one moment.
pub(crate) trait Content {
    fn html(&self, links: Links<'_>) -> Markup;
}

/// For whom a page is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links<'a> {
    pub(crate) base: &'a str,
    /// Whether there are links to actions.
    pub(crate) acts: bool,
}

/// The content of a page at one moment: for who may look, and for who may act.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) look: String,
    pub(crate) act: String,
}

impl Links<'_> {
    pub(crate) fn to(self, page: &str) -> String {
        href(self.base, page)
    }

    /// The page of a lock, with its name.
    pub(crate) fn lock(self, name: &Name) -> Markup {
        html! { a href=(self.to(&lock_path(name))) { (text::text(name.as_str())) } }
    }

    /// The page of a record, with its key.
    pub(crate) fn record(self, key: &RecordKey) -> Markup {
        html! { a href=(self.to(&record_path(key))) { (text::bytes(key.key())) } }
    }

    /// The columns of a table whose last one has actions: that one is for who may act.
    pub(crate) fn columns<'n>(self, names: &'n [&'n str]) -> &'n [&'n str] {
        let shown = names.len() - usize::from(!self.acts);
        &names[..shown]
    }

    /// A link to the confirmation of an action, for who may act.
    pub(crate) fn act(self, action: &str, fields: &[(&str, &str)], label: &str) -> Markup {
        let path = format!("/act/{action}?{}", query(fields));
        html! { @if self.acts { a.act href=(self.to(path.trim_end_matches('?'))) { (label) } } }
    }
}

pub(crate) fn lock_path(name: &Name) -> String {
    format!("/lock?{}", query(&[("name", name.as_str())]))
}

pub(crate) fn record_path(key: &RecordKey) -> String {
    let (scope, key) = (hex::encode(key.scope()), hex::encode(key.key()));
    format!("/record?{}", query(&[("scope", &scope), ("key", &key)]))
}

/// The lock that a query names, or a form: in hexadecimal.
pub(crate) fn name_of(fields: &Fields) -> Option<Name> {
    if fields.get("lock").is_empty() {
        return Name::new(fields.get("name")).ok();
    }
    let name = String::from_utf8(fields.bytes("lock")?);
    Name::new(&name.ok()?).ok()
}

/// The record that a query names.
pub(crate) fn record_of(fields: &Fields) -> Option<RecordKey> {
    RecordKey::new(fields.bytes("scope")?, fields.bytes("key")?).ok()
}

impl Fragment {
    pub(crate) fn new(content: &impl Content, base: &str) -> Self {
        let html = |acts| content.html(Links { base, acts }).into_string();
        Self {
            look: html(false),
            act: html(true),
        }
    }

    pub(crate) fn of(&self, viewer: &Viewer) -> &str {
        match viewer.who {
            Some(_) => &self.act,
            None => &self.look,
        }
    }
}
