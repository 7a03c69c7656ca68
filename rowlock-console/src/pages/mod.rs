//! The pages: each file reads one kind of page from the database, and shows it.

pub(crate) mod chart;
pub(crate) mod jobs;
pub(crate) mod lock;
pub(crate) mod locks;
pub(crate) mod overview;
pub(crate) mod rates;
pub(crate) mod record;
pub(crate) mod records;
pub(crate) mod sessions;

use maud::{Markup, html};

/// The entries of one page of a list.
pub(crate) const PAGE: u32 = 50;

/// The words for a page of a list by key, and the links to the first and the next one.
pub(crate) fn more(first: Option<&str>, next: Option<&str>, order: &str) -> Markup {
    html! {
        p.hint {
            "Pages are by " (order) ": an entry that comes or goes moves no other one to another page. "
            @match next {
                Some(next) => { a href=(next) rel="next" { "Next page" } }
                None => "This is the last page.",
            }
            @if let Some(first) = first { " " a href=(first) rel="first" { "First page" } }
        }
    }
}

/// What stands in place of a table without rows: `all` if the page would show everything, and otherwise that there is
/// nothing `such`. A page may be empty and have a next one.
pub(crate) fn none(is_all: bool, next: Option<&str>, all: &str, such: &str) -> Markup {
    html! {
        @match (is_all, next) {
            (_, Some(_)) => { p { (such) " on this page." } }
            (true, None) => { p { (all) } }
            (false, None) => { p { (such) "." } }
        }
    }
}

/// The head of a table.
pub(crate) fn columns(names: &[&str]) -> Markup {
    html! { thead { tr { @for name in names { th scope="col" { (name) } } } } }
}

/// The field of a filter for the begin of names.
pub(crate) fn prefix(value: &str) -> Markup {
    html! {
        label {
            "Names that begin with "
            input name="prefix" value=(value) maxlength="255" autocomplete="off";
        }
    }
}

/// An option of a filter.
pub(crate) fn choice(value: &str, chosen: &str, label: &str) -> Markup {
    html! { option value=(value) selected[value == chosen] { (label) } }
}
