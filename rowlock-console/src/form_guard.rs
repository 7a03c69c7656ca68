//! The tokens of forms: a form is from a page of this console, for this person.

use axum::response::Response;
use http::StatusCode;
use http::header::SET_COOKIE;
use http::request::Parts;
use maud::{Markup, html};

use crate::Shared;
use crate::fields::Fields;
use crate::layout::refusal;
use crate::origin::is_of_this_site;
use crate::session::{random, set_cookie};
use crate::viewer::Viewer;

/// The viewer of a page with a form has a cookie for its token. Returns the header that sets a new one.
pub(crate) fn seed(parts: &Parts, viewer: &mut Viewer) -> Option<String> {
    if !viewer.seed.is_empty() {
        return None;
    }
    viewer.seed = random();
    let name = &viewer.cookies.forms;
    Some(set_cookie(parts, &viewer.base, name, &viewer.seed))
}

pub(crate) fn with_cookies(mut response: Response, cookie: Option<String>) -> Response {
    if let Some(cookie) = cookie.and_then(|cookie| cookie.try_into().ok()) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

impl Shared {
    /// The token of a form.
    pub(crate) fn hidden(&self, viewer: &Viewer, who: &str) -> Markup {
        let token = self.seal.token(&viewer.seed, &viewer.session, who);
        html! { input type="hidden" name="form" value=(token); }
    }

    /// The refusal of a form that does not come from this console, or not from this person.
    pub(crate) fn refused(
        &self,
        parts: &Parts,
        viewer: &Viewer,
        who: &str,
        fields: &Fields,
    ) -> Option<Response> {
        let token = fields.get("form");
        let is_token = self
            .seal
            .is_token(token, &viewer.seed, &viewer.session, who);
        if is_of_this_site(parts) && is_token {
            return None;
        }
        let why = "This form does not come from this console, or it is too old. Open its page again. Nothing was \
                   done.";
        Some(refusal(viewer, StatusCode::FORBIDDEN, why))
    }
}
