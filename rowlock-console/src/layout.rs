//! What all pages have around them.

use axum::response::{Html, IntoResponse, Response};
use http::StatusCode;
use maud::{DOCTYPE, Markup, html};

use crate::text;
use crate::viewer::Viewer;

/// The menu.
const MENU: [(&str, &str); 5] = [
    ("/", "Overview"),
    ("/locks", "Locks"),
    ("/sessions", "Sessions"),
    ("/jobs", "Jobs"),
    ("/records", "Records"),
];

/// What a page is called.
#[derive(Debug)]
pub(crate) struct Title {
    /// In the browser's list of pages.
    pub(crate) words: String,
    /// Above the page.
    pub(crate) heading: Markup,
    /// Its entry in the menu, if it has one.
    pub(crate) entry: &'static str,
}

impl Title {
    pub(crate) fn new(words: &str, entry: &'static str) -> Self {
        Self {
            words: words.to_owned(),
            heading: html! { (words) },
            entry,
        }
    }
}

/// A page. Who may see the console sees the menu, and which database it is.
pub(crate) fn page(viewer: &Viewer, title: &Title, content: &Markup) -> Markup {
    page_with(viewer, title, content, &Markup::default())
}

/// A page with more in its head.
pub(crate) fn page_with(viewer: &Viewer, title: &Title, content: &Markup, head: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                (head)
                title { (title.words) " – rowlock" }
                link rel="icon" type="image/svg+xml" href=(viewer.href("/assets/icon.svg"));
                link rel="stylesheet" href=(viewer.href("/assets/console.css"));
                script defer src=(viewer.href("/assets/console.js")) {}
            }
            body {
                a.skip href="#content" { "To the content" }
                header {
                    p.brand { "rowlock" }
                    @if let Some(target) = &viewer.target { (menu(viewer, title.entry, target)) }
                }
                main #content tabindex="-1" {
                    h1 { (title.heading) }
                    (content)
                }
            }
        }
    }
}

fn menu(viewer: &Viewer, entry: &str, target: &str) -> Markup {
    html! {
        nav aria-label="Pages" {
            @for (path, name) in MENU {
                @let is_here = (path == entry).then_some("page");
                a href=(viewer.href(path)) aria-current=[is_here] { (name) }
            }
        }
        p.database {
            (text::text(target))
            @match &viewer.who {
                Some(who) => { " · you act as " (text::text(who)) }
                None => " · you may look only",
            }
            @if viewer.can_log_out { " · " a href=(viewer.href("/logout")) { "Log out" } }
        }
    }
}

/// A page with this status.
pub(crate) fn answer(status: StatusCode, page: Markup) -> Response {
    (status, Html(page.into_string())).into_response()
}

/// A page that says why there is no other one.
pub(crate) fn refusal(viewer: &Viewer, status: StatusCode, why: &str) -> Response {
    let title = match status {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::SERVICE_UNAVAILABLE => "Not available",
        _ => "Refused",
    };
    let content = html! {
        p.notice.bad role="alert" { (why) }
        @if viewer.target.is_none() && viewer.can_log_out { p { a href=(viewer.href("/logout")) { "Log out" } } }
    };
    answer(status, page(viewer, &Title::new(title, ""), &content))
}
