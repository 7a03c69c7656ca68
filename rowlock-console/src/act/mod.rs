//! Actions: each is shown, asked about once more, done, and logged.
//!
//! 1. GET shows what the action will do to whom, and asks for a reason.
//! 2. POST without `sure` asks once more.
//! 3. POST with `sure` does it once, if the one who would lose something is still the one that was shown.
//!
//! The log lines are the entry of an action: the console has no table of its own.

mod action;
mod perform;
mod preview;
mod sure;

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use maud::{Markup, html};

use crate::fields::Fields;
use crate::form_guard::{seed, with_cookies};
use crate::layout::{Title, answer, refusal};
use crate::text::{sentence, text};
use crate::viewer::{Viewer, last_segment};
use crate::{Shared, layout};
use action::{Action, Input};
pub(crate) use perform::done;
use preview::Preview;
use sure::End;
pub(crate) use sure::SureForms;

/// The longest reason, in characters.
const REASON: usize = 500;

const TOO_OLD: &str = "This form is too old: look again. Nothing was done now.";

const FORM: &[u8] = b"application/x-www-form-urlencoded";

/// What stands in the way of doing it now.
#[derive(Debug, Clone)]
pub(crate) struct Obstacle(StatusCode, String);

/// Whether there is such an action.
pub(crate) fn is_action(word: &str, fields: &Fields) -> bool {
    Action::parse(word, fields).is_some()
}

/// The page that says what the action will do.
pub(crate) async fn ask(
    State(shared): State<Arc<Shared>>,
    Extension(mut viewer): Extension<Viewer>,
    parts: Parts,
) -> Response {
    let fields = Fields::parse(parts.uri.query().unwrap_or_default().as_bytes());
    let action = match allowed(&viewer, &parts, &fields) {
        Ok((_, action)) => action,
        Err(refused) => return *refused,
    };
    let cookie = seed(&parts, &mut viewer);
    let answer = match Preview::of(&shared, &action).await {
        // (What an address says is not an answer of the person's.)
        Ok(preview) => confirm(
            &shared,
            &viewer,
            &action,
            &preview,
            &Fields::default(),
            None,
        ),
        Err(error) => unread(&viewer, &error),
    };
    with_cookies(answer, cookie)
}

/// Asks once more, or does it.
pub(crate) async fn act(
    State(shared): State<Arc<Shared>>,
    Extension(viewer): Extension<Viewer>,
    parts: Parts,
    body: Bytes,
) -> Response {
    let media = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    if !media.is_some_and(|media| media.starts_with(FORM)) {
        let why = "A form is expected.";
        return refusal(&viewer, StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
    }
    let fields = Fields::parse(&body);
    let (who, action) = match allowed(&viewer, &parts, &fields) {
        Ok(allowed) => allowed,
        Err(refused) => return *refused,
    };
    if let Some(refused) = shared.refused(&parts, &viewer, &who, &fields) {
        return refused;
    }
    let sure = fields.get("sure");
    if sure.is_empty() {
        return match Preview::of(&shared, &action).await {
            Ok(preview) => once_more(&shared, &viewer, &action, &preview, &fields),
            Err(error) => unread(&viewer, &error),
        };
    }
    let work = || {
        let (shared, action, fields) = (Arc::clone(&shared), action.clone(), fields.clone());
        async move { carry_out(&shared, &action, &fields, &who).await }
    };
    let end = match shared.sure_forms.send(sure, work) {
        Some(mut end) => end
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|end| end.clone()),
        None => Some(Err(Obstacle(StatusCode::CONFLICT, TOO_OLD.into()))),
    };
    match end {
        Some(Ok(())) => Redirect::to(&viewer.href(&action.then())).into_response(),
        // What is shown now is how it is now.
        Some(Err(obstacle)) => match Preview::of(&shared, &action).await {
            Ok(preview) => confirm(
                &shared,
                &viewer,
                &action,
                &preview,
                &fields,
                Some(&obstacle),
            ),
            Err(_) => refusal(&viewer, obstacle.0, &obstacle.1),
        },
        None => refusal(
            &viewer,
            StatusCode::SERVICE_UNAVAILABLE,
            "The console is stopping. The action may have been done or not.",
        ),
    }
}

/// Does what a form asks for, if nothing has changed since its page was made.
async fn carry_out(shared: &Shared, action: &Action, fields: &Fields, who: &str) -> End {
    let preview = Preview::of(shared, action).await;
    let preview = preview
        .map_err(|error| Obstacle(StatusCode::SERVICE_UNAVAILABLE, unread_because(&error)))?;
    let (input, reason) = checked(action, &preview, fields)?;
    action.run(shared, &preview, input, (who, &reason)).await
}

/// Who asks, and the action, if they may act and there is such an action.
fn allowed(
    viewer: &Viewer,
    parts: &Parts,
    fields: &Fields,
) -> Result<(String, Action), Box<Response>> {
    let Some(who) = viewer.who.clone() else {
        let why = "You may look only. Nothing was done.";
        return Err(refusal(viewer, StatusCode::FORBIDDEN, why).into());
    };
    let why = "There is no such action. The address may have been cut.";
    let action = Action::parse(last_segment(&parts.uri), fields);
    let action = action.ok_or_else(|| Box::new(refusal(viewer, StatusCode::NOT_FOUND, why)))?;
    Ok((who, action))
}

/// What a form says, if it is complete and nothing has changed since its page was made.
fn checked(
    action: &Action,
    preview: &Preview,
    fields: &Fields,
) -> Result<(Input, String), Obstacle> {
    if let Some(why) = &preview.impossible {
        return Err(Obstacle(StatusCode::CONFLICT, why.clone()));
    }
    if fields.get("seen") != preview.seen {
        let why =
            "It has changed since this page was made. This is how it is now. Nothing was done.";
        return Err(Obstacle(StatusCode::CONFLICT, why.into()));
    }
    let incomplete = |why: String| Obstacle(StatusCode::UNPROCESSABLE_ENTITY, why);
    let input = action.input(fields).map_err(incomplete)?;
    let reason = fields.get("reason").trim();
    if !(1..=REASON).contains(&reason.chars().count()) {
        let why = format!("Give a reason, in {REASON} characters at most.");
        return Err(incomplete(why));
    }
    Ok((input, reason.to_owned()))
}

fn unread(viewer: &Viewer, error: &rowlock::Error) -> Response {
    refusal(
        viewer,
        StatusCode::SERVICE_UNAVAILABLE,
        &unread_because(error),
    )
}

fn unread_because(error: &rowlock::Error) -> String {
    let error = sentence(&error.to_string());
    format!("The database was not read: {error} Nothing was done.")
}

fn titled(viewer: &Viewer, action: &Action, content: &Markup) -> Markup {
    layout::page(viewer, &Title::new(action.title(), ""), content)
}

/// The first page of an action.
fn confirm(
    shared: &Shared,
    viewer: &Viewer,
    action: &Action,
    preview: &Preview,
    fields: &Fields,
    obstacle: Option<&Obstacle>,
) -> Response {
    let who = viewer.who.as_deref().unwrap_or_default();
    let status = obstacle.map_or(StatusCode::OK, |found| found.0);
    let content = html! {
        @if let Some(Obstacle(_, why)) = obstacle { p.notice.bad role="alert" { (text(why)) } }
        (preview.html)
        @match &preview.impossible {
            // (It may stand above already.)
            Some(why) => {
                @if obstacle.is_none_or(|found| found.1 != *why) { p.notice.bad role="alert" { (text(why)) } }
            }
            None => {
                form method="post" action=(viewer.href(&action.path())) {
                    (shared.hidden(viewer, who))
                    (hidden(action, preview))
                    (action.questions(fields))
                    p { label { "The reason, for the log "
                        textarea name="reason" required maxlength=(REASON) rows="2" { (fields.get("reason")) }
                    } }
                    p { button { (action.title()) "…" } }
                }
            }
        }
        p { a href=(viewer.href(&action.back())) { "Back, and do nothing" } }
    };
    answer(status, titled(viewer, action, &content))
}

/// The second page, or the first one again.
fn once_more(
    shared: &Shared,
    viewer: &Viewer,
    action: &Action,
    preview: &Preview,
    fields: &Fields,
) -> Response {
    let reason = match checked(action, preview, fields) {
        Ok((_, reason)) => reason,
        Err(obstacle) => return confirm(shared, viewer, action, preview, fields, Some(&obstacle)),
    };
    let who = viewer.who.as_deref().unwrap_or_default();
    let content = html! {
        (preview.html)
        (action.answers(fields))
        p { "The reason: " (text(&reason)) }
        p.notice.bad role="alert" {
            @if !action.can_be_undone() { "This cannot be undone. " }
            "Are you sure?"
        }
        form method="post" action=(viewer.href(&action.path())) {
            (shared.hidden(viewer, who))
            (hidden(action, preview))
            @for name in ["reason", "capacity", "time", "happened", "result"] {
                @if !fields.get(name).is_empty() { input type="hidden" name=(name) value=(fields.get(name)); }
            }
            p { button.bad name="sure" value=(shared.sure_forms.make()) { "Yes: " (action.title()) } }
        }
        p { a href=(viewer.href(&action.back())) { "No, and do nothing" } }
    };
    answer(StatusCode::OK, titled(viewer, action, &content))
}

/// What is acted on, and what was seen of it.
fn hidden(action: &Action, preview: &Preview) -> Markup {
    html! {
        @for (name, value) in action.fields() { input type="hidden" name=(name) value=(value); }
        input type="hidden" name="seen" value=(preview.seen);
    }
}
