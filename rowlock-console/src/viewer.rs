//! Who has sent a request, and where the console is.

use std::sync::Arc;

use axum::extract::OriginalUri;
use http::Uri;
use http::request::Parts;

use crate::session::{CookieNames, cookie};

/// Who has sent a request, and where the console is.
#[derive(Clone)]
pub(crate) struct Viewer {
    /// The path of the console: empty, or a path without a slash at its end.
    pub(crate) base: String,
    /// The person, if they may act.
    pub(crate) who: Option<String>,
    /// The database, if they may see the console.
    pub(crate) target: Option<String>,
    /// Whether there is a login to end.
    pub(crate) can_log_out: bool,
    /// The cookies: their names and their values.
    pub(crate) cookies: Arc<CookieNames>,
    pub(crate) session: String,
    pub(crate) seed: String,
}

impl Viewer {
    /// The address of a page: `page` begins with a slash.
    pub(crate) fn href(&self, page: &str) -> String {
        href(&self.base, page)
    }

    /// The login or the name, for the limits of one person. (Those who may look only, without a login, count as one.)
    pub(crate) fn person(&self) -> &str {
        match &self.who {
            _ if self.can_log_out => &self.session,
            Some(who) => who,
            None => "",
        }
    }
}

/// (axum does not match the slash at the end of a nested router's path.)
pub(crate) fn href(base: &str, page: &str) -> String {
    match (base, page) {
        ("", page) => page.to_owned(),
        (base, "/") => base.to_owned(),
        (base, page) => match page.strip_prefix("/?") {
            Some(query) => format!("{base}?{query}"),
            None => format!("{base}{page}"),
        },
    }
}

impl Viewer {
    /// By the address and the cookies alone.
    pub(crate) fn of(parts: &Parts, cookies: &Arc<CookieNames>) -> Self {
        let original = parts.extensions.get::<OriginalUri>();
        let whole = original.map_or(parts.uri.path(), |uri| uri.path());
        let inner = parts.uri.path();
        let base = whole.strip_suffix(inner).unwrap_or(whole);
        // Two slashes at the begin of a link name a host.
        let base = base.trim_matches('/');
        Self {
            base: if base.is_empty() {
                String::new()
            } else {
                format!("/{base}")
            },
            who: None,
            target: None,
            can_log_out: false,
            session: cookie(parts, &cookies.login).to_owned(),
            seed: cookie(parts, &cookies.forms).to_owned(),
            cookies: Arc::clone(cookies),
        }
    }
}

/// The last part of a path. (axum's `Path` has the parameters of a router that the console is nested in, too.)
pub(crate) fn last_segment(uri: &Uri) -> &str {
    uri.path().rsplit('/').next().unwrap_or_default()
}
