//! The shop's refusals, as `application/problem+json` (RFC 9457).

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rowlock::Error;
use serde::Deserialize;
use serde_json::json;

#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, detail } = self;
        let title = status.canonical_reason();
        let body = json!({ "title": title, "status": status.as_u16(), "detail": detail });
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        let response = (status, content_type, body.to_string());
        match status {
            // RFC 9110, section 11.6.1: a 401 says how to log in.
            StatusCode::UNAUTHORIZED => {
                let how = [(header::WWW_AUTHENTICATE, r#"Bearer realm="payments""#)];
                (how, response).into_response()
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                ([(header::RETRY_AFTER, "1")], response).into_response()
            }
            _ => response.into_response(),
        }
    }
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A failure that may pass: the client tries again, with the same key.
    pub(crate) fn trouble(error: &dyn std::fmt::Display) -> Self {
        eprintln!("payments: {error}");
        let detail =
            "the database or the payment provider did not answer: send the same request again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::trouble(&error)
    }
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        Self::trouble(&error)
    }
}

/// Parses the JSON of a request. Wrong JSON is a final error of the client.
pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::bad(format!("the body is not the expected JSON: {error}")))
}

/// Checks that an id fits into the table, and is unambiguous on every engine. (MySQL and MariaDB ignore spaces at its
/// end.)
pub(crate) fn check(what: &str, text: &str) -> Result<(), Problem> {
    let fits = (1..=100).contains(&text.len()) && !text.contains('\0') && text.trim() == text;
    fits.then_some(()).ok_or_else(|| {
        let rule = "must have 1 to 100 bytes, no NUL, and no space at its ends";
        Problem::bad(format!("{what} {rule}"))
    })
}
