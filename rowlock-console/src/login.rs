//! Logging in with the token of the console, and logging out.

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, StatusCode};
use maud::{Markup, html};

use crate::Shared;
use crate::fields::{Fields, query};
use crate::form_guard::{seed, with_cookies};
use crate::layout::{Title, answer, page, page_with};
use crate::origin::is_from_another_site;
use crate::session::set_cookie;
use crate::view::way;
use crate::viewer::Viewer;

/// The longest name, in characters.
const NAME: usize = 100;

/// What the forms here are for.
const STRANGER: &str = "";

/// Where to log in, and then see the page that this request is for.
pub(crate) fn to_log_in(parts: &Parts, viewer: &Viewer) -> Response {
    let address = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
    let to = Some(address).filter(|address| parts.method == Method::GET && *address != "/");
    let to = to.and_then(way).unwrap_or_default();
    Redirect::to(&viewer.href(&login_path(&to))).into_response()
}

fn login_path(to: &str) -> String {
    let path = format!("/login?{}", query(&[("to", to)]));
    path.trim_end_matches('?').to_owned()
}

/// The page that was asked for, or else the first one.
fn page_after(viewer: &Viewer, to: &str) -> Response {
    let to = way(to).unwrap_or_else(|| "/".into());
    Redirect::to(&viewer.href(&to)).into_response()
}

/// The page with the form.
pub(crate) async fn ask(
    State(shared): State<Arc<Shared>>,
    Extension(mut viewer): Extension<Viewer>,
    parts: Parts,
) -> Response {
    let fields = Fields::parse(parts.uri.query().unwrap_or_default().as_bytes());
    let to = fields.get("to");
    if shared.token.is_none() || shared.logins.name(&viewer.session).is_some() {
        return page_after(&viewer, to);
    }
    if is_from_another_site(&parts) {
        return once_more(&viewer, to);
    }
    let cookie = seed(&parts, &mut viewer);
    let form = form(&shared, &viewer, to, None);
    with_cookies(answer(StatusCode::OK, form), cookie)
}

/// A browser sends no cookies after a link on another site (SameSite=Strict). It sends them when a page of this
/// console asks for the next one.
fn once_more(viewer: &Viewer, to: &str) -> Response {
    let login = viewer.href(&login_path(&way(to).unwrap_or_default()));
    let head = html! { meta http-equiv="refresh" content={ "0; url=" (login) }; };
    let content = html! { p { a href=(login) { "To the login" } } };
    let page = page_with(viewer, &Title::new("Log in", ""), &content, &head);
    answer(StatusCode::OK, page)
}

fn form(shared: &Shared, viewer: &Viewer, to: &str, wrong: Option<&str>) -> Markup {
    let content = html! {
        @if let Some(wrong) = wrong { p.notice.bad role="alert" { (wrong) } }
        form method="post" action=(viewer.href("/login")) {
            (shared.hidden(viewer, STRANGER))
            @if let Some(to) = way(to) { input type="hidden" name="to" value=(to); }
            p { label {
                "Your name, for the log of actions "
                input name="name" required maxlength=(NAME) autocomplete="username";
            } }
            p { label {
                "The token of this console "
                input name="token" type="password" required autocomplete="current-password";
            } }
            p { button { "Log in" } }
        }
    };
    page(viewer, &Title::new("Log in", ""), &content)
}

/// Takes the name and the token.
pub(crate) async fn begin(
    State(shared): State<Arc<Shared>>,
    Extension(viewer): Extension<Viewer>,
    parts: Parts,
    body: Bytes,
) -> Response {
    let fields = Fields::parse(&body);
    if let Some(refused) = shared.refused(&parts, &viewer, STRANGER, &fields) {
        return refused;
    }
    let to = fields.get("to");
    let Some(token) = &shared.token else {
        return page_after(&viewer, to);
    };
    let name = fields.get("name").trim();
    let is_name = (1..=NAME).contains(&name.chars().count());
    if !token.is(fields.get("token")) {
        // (Without the name: it may be the token, in the wrong field.)
        tracing::warn!(target: "rowlock::console", "a login with a wrong token was refused");
        let form = form(&shared, &viewer, to, Some("This is not the token."));
        return answer(StatusCode::FORBIDDEN, form);
    }
    if !is_name {
        let form = form(
            &shared,
            &viewer,
            to,
            Some("Give your name, in 100 characters at most."),
        );
        return answer(StatusCode::UNPROCESSABLE_ENTITY, form);
    }
    tracing::info!(target: "rowlock::console", who = name, "logged in");
    shared.logins.end(&viewer.session);
    let session = shared.logins.begin(name.to_owned());
    let cookie = set_cookie(&parts, &viewer.base, &viewer.cookies.login, &session);
    with_cookies(page_after(&viewer, to), Some(cookie))
}

/// The page with the button.
pub(crate) async fn ask_to_end(
    State(shared): State<Arc<Shared>>,
    Extension(mut viewer): Extension<Viewer>,
    parts: Parts,
) -> Response {
    let cookie = seed(&parts, &mut viewer);
    let content = html! {
        form method="post" action=(viewer.href("/logout")) {
            (shared.hidden(&viewer, STRANGER))
            p { button { "Log out" } }
        }
        p { a href=(viewer.href("/")) { "Back" } }
    };
    let page = page(&viewer, &Title::new("Log out", ""), &content);
    with_cookies(answer(StatusCode::OK, page), cookie)
}

pub(crate) async fn end(
    State(shared): State<Arc<Shared>>,
    Extension(viewer): Extension<Viewer>,
    parts: Parts,
    body: Bytes,
) -> Response {
    let fields = Fields::parse(&body);
    if let Some(refused) = shared.refused(&parts, &viewer, STRANGER, &fields) {
        return refused;
    }
    shared.logins.end(&viewer.session);
    let cookie = set_cookie(&parts, &viewer.base, &viewer.cookies.login, "");
    let to = Redirect::to(&viewer.href("/")).into_response();
    with_cookies(to, Some(cookie))
}
