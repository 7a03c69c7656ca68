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

/// A page: `current` is its entry in the menu, if it has one, and `target` the database.
pub(crate) fn page(
    viewer: &Viewer,
    target: Option<&str>,
    title: &str,
    current: &str,
    content: &Markup,
) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – rowlock" }
                link rel="icon" type="image/svg+xml" href=(viewer.href("/assets/icon.svg"));
                link rel="stylesheet" href=(viewer.href("/assets/console.css"));
                script defer src=(viewer.href("/assets/console.js")) {}
            }
            body {
                a.skip href="#content" { "To the content" }
                header {
                    p.brand { "rowlock" }
                    @if let Some(target) = target {
                        nav aria-label="Pages" {
                            @for (path, name) in MENU {
                                @let is_here = (path == current).then_some("page");
                                a href=(viewer.href(path)) aria-current=[is_here] { (name) }
                            }
                            @if viewer.can_log_out {
                                a href=(viewer.href("/logout")) { "Log out" }
                            }
                        }
                        p.database {
                            (text::text(target))
                            @match &viewer.who {
                                Some(who) => { " · you act as " (text::text(who)) }
                                None => " · you may look only",
                            }
                        }
                    }
                }
                main #content tabindex="-1" {
                    h1 { (title) }
                    (content)
                }
            }
        }
    }
}

/// A page with this status.
pub(crate) fn answer(status: StatusCode, page: Markup) -> Response {
    (status, Html(page.into_string())).into_response()
}

/// A page that says why there is no other one.
pub(crate) fn refusal(viewer: &Viewer, status: StatusCode, why: &str) -> Response {
    let content = html! {
        p.notice.bad role="alert" { (why) }
        p { a href=(viewer.href("/")) { "To the overview" } }
    };
    answer(status, page(viewer, None, "Refused", "", &content))
}
