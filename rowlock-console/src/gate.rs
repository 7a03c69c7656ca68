//! What holds of every request and of every answer: the host, the headers, and who it is.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::time::timeout;

use crate::layout::refusal;
use crate::login::to_log_in;
use crate::origin::{authority, is_part_of_another_page};
use crate::viewer::Viewer;
use crate::{Access, Shared, Visitor};

/// Nothing inline, nothing from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A sender that stops in the middle of a body keeps a connection for this time.
const BODY_TIME: Duration = Duration::from_secs(10);

/// The most bytes of a body.
const BODY_SIZE: usize = 2 << 20;

/// The headers of every answer.
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
];

/// Refuses requests for other hosts and by the pages of others, and gives every answer its headers.
pub(crate) async fn gate(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let viewer = Viewer::of(&parts, &shared.cookies);
    let mut response = match shared.accept(&parts, body).await {
        Ok(body) => {
            parts.extensions.insert(viewer);
            next.run(Request::from_parts(parts, body)).await
        }
        Err((status, why)) => refusal(&viewer, status, why),
    };
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

impl Shared {
    /// The body of a request, or why the request is refused, whoever sends it.
    async fn accept(&self, parts: &Parts, body: Body) -> Result<Body, (StatusCode, &'static str)> {
        let host = authority(parts);
        if !host.is_some_and(|host| self.is_ours(host.host())) {
            let why = "The console does not answer to this host. It answers to localhost, to IP addresses, and to \
                       hosts that it was started with: rowlock console --allow-host HOST, or Console::allow_host.";
            return Err((StatusCode::MISDIRECTED_REQUEST, why));
        }
        if parts.method.is_safe() && is_part_of_another_page(parts) {
            let why = "The console answers no requests by a page of another site. A link to the console works.";
            return Err((StatusCode::FORBIDDEN, why));
        }
        let why = "The request did not come within 10 seconds.";
        let body = timeout(BODY_TIME, to_bytes(body, BODY_SIZE)).await;
        let body = body.map_err(|_| (StatusCode::REQUEST_TIMEOUT, why))?;
        let why = "The form is larger than 2 MiB, or the connection broke.";
        Ok(body
            .map_err(|_| (StatusCode::PAYLOAD_TOO_LARGE, why))?
            .into())
    }

    fn is_ours(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || address.parse::<IpAddr>().is_ok() || self.hosts.contains(&host)
    }
}

/// Lets those through who may see the console.
pub(crate) async fn admit(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let Some(mut viewer) = parts.extensions.remove::<Viewer>() else {
        unreachable!("the gate has put it there")
    };
    if let Err(refused) = shared.admit(&mut parts, &mut viewer) {
        return *refused;
    }
    parts.extensions.insert(viewer);
    next.run(Request::from_parts(parts, body)).await
}

impl Shared {
    /// Says who it is, if they may see the console now.
    pub(crate) fn admit(
        &self,
        parts: &mut Parts,
        viewer: &mut Viewer,
    ) -> Result<(), Box<Response>> {
        if self.token.is_some() {
            let Some(name) = self.logins.name(&viewer.session) else {
                return Err(to_log_in(parts, viewer).into());
            };
            parts.extensions.insert(Visitor { name });
            viewer.can_log_out = true;
        }
        let access = self.policy.of(parts);
        viewer.target = (access != Access::None).then(|| self.rowlock.target().to_owned());
        viewer.who = match access {
            Access::Act { who } => Some(who),
            Access::Read => None,
            Access::None => {
                let why = "You may not see this console.";
                return Err(refusal(viewer, StatusCode::FORBIDDEN, why).into());
            }
        };
        Ok(())
    }
}

pub(crate) async fn not_found(Extension(viewer): Extension<Viewer>) -> Response {
    refusal(&viewer, StatusCode::NOT_FOUND, "There is no such page.")
}
