//! Refusals, as `application/problem+json` (RFC 9457).

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, CONTENT_LANGUAGE, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use rowlock::{Error, InvalidError, RecordError};
use serde::Serialize;

use crate::body::ResponseBody;

/// Retry-After when the database is out of reach, in seconds.
const DATABASE_RETRY_AFTER: u64 = 5;
/// The bounds of Retry-After when an attempt is running.
const RETRY_AFTER: RangeInclusive<u64> = 1..=300;

/// Why the layer answers a request itself, instead of the handler.
#[derive(Debug)]
pub(crate) enum Problem {
    MissingKey,
    BadKey(Cow<'static, str>),
    NoPrincipal,
    Grpc,
    RequestRefused(String),
    BodyTooLarge { limit: usize },
    BodyUnreadable,
    BodyTooSlow { limit: Duration },
    InFlight { remaining: Option<Duration> },
    KeyReused,
    Unknown { step: String },
    Poisoned { attempts: u32 },
    Expired,
    ResponseNotKept { status: Option<u16> },
    HandlerPanicked,
    RunTooLong { limit: Duration },
    Overloaded,
    Damaged,
    Misconfigured,
    Unavailable,
    Stopping,
}

#[derive(Serialize)]
struct Members<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_status: Option<u16>,
}

impl Problem {
    /// The problem that a client sees for an error of rowlock. The details go to the log.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Superseded { .. } => Self::InFlight { remaining: None },
            Error::Record(RecordError::StepUnknown { step, .. }) => {
                Self::Unknown { step: step.clone() }
            }
            Error::Record(RecordError::Corrupt { .. }) => {
                tracing::error!(%error, "a request is refused");
                Self::Damaged
            }
            Error::ShutDown { .. } => {
                tracing::warn!(%error, "a request is refused");
                Self::Stopping
            }
            // The layer has checked the key.
            Error::Invalid(InvalidError::Key { .. }) => {
                tracing::error!(%error, "a request is refused: its principal, with the name of the service, has more than 250 bytes");
                Self::Misconfigured
            }
            Error::Invalid(_) | Error::Record(RecordError::OutcomeTooLarge { .. }) => {
                tracing::error!(%error, "requests are refused: the layer is not configured correctly");
                Self::Misconfigured
            }
            _ => {
                tracing::error!(%error, "a request is refused");
                Self::Unavailable
            }
        }
    }

    /// The anchor in the documentation, and the status.
    fn kind(&self) -> (&'static str, StatusCode) {
        match self {
            Self::MissingKey => ("missing-key", StatusCode::BAD_REQUEST),
            Self::BadKey(_) => ("bad-key", StatusCode::BAD_REQUEST),
            Self::NoPrincipal => ("no-principal", StatusCode::UNAUTHORIZED),
            Self::Grpc => ("grpc", StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Self::RequestRefused(_) => ("request-refused", StatusCode::BAD_REQUEST),
            Self::BodyTooLarge { .. } => ("body-too-large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::BodyUnreadable => ("body-unreadable", StatusCode::BAD_REQUEST),
            Self::BodyTooSlow { .. } => ("body-too-slow", StatusCode::REQUEST_TIMEOUT),
            Self::InFlight { .. } => ("in-flight", StatusCode::CONFLICT),
            Self::KeyReused => ("key-reused", StatusCode::UNPROCESSABLE_ENTITY),
            Self::Unknown { .. } => ("unknown", StatusCode::CONFLICT),
            Self::Poisoned { .. } => ("poisoned", StatusCode::CONFLICT),
            Self::Expired => ("expired", StatusCode::GONE),
            Self::ResponseNotKept { .. } => ("response-not-kept", StatusCode::GONE),
            Self::HandlerPanicked => ("handler-panicked", StatusCode::INTERNAL_SERVER_ERROR),
            Self::RunTooLong { .. } => ("run-too-long", StatusCode::SERVICE_UNAVAILABLE),
            Self::Overloaded => ("overloaded", StatusCode::SERVICE_UNAVAILABLE),
            Self::Damaged => ("damaged", StatusCode::INTERNAL_SERVER_ERROR),
            Self::Misconfigured => ("misconfigured", StatusCode::INTERNAL_SERVER_ERROR),
            Self::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE),
            Self::Stopping => ("stopping", StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::MissingKey => "Idempotency-Key is missing",
            Self::BadKey(_) => "Idempotency-Key is malformed",
            Self::NoPrincipal => "The request does not say whose key it is",
            Self::Grpc => "gRPC has no Idempotency-Key",
            Self::RequestRefused(_) => "The server cannot read the request",
            Self::BodyTooLarge { .. } => "The body of the request is too large",
            Self::BodyUnreadable => "The body of the request broke off",
            Self::BodyTooSlow { .. } => "The body of the request came too slowly",
            Self::InFlight { .. } => "A request is outstanding for this Idempotency-Key",
            Self::KeyReused => "Idempotency-Key is already used",
            Self::Unknown { .. } => "It is not known whether the request took effect",
            Self::Poisoned { .. } => "The request has failed too often",
            Self::Expired => "Idempotency-Key is too old",
            Self::ResponseNotKept { .. } => "The request was done, and its response was not kept",
            Self::HandlerPanicked => "The server failed",
            Self::RunTooLong { .. } => "The request took too long",
            Self::Overloaded => "The server has too many requests",
            Self::Damaged => "The record of this Idempotency-Key is damaged",
            Self::Misconfigured => "The server is not configured correctly",
            Self::Unavailable => "The database is out of reach",
            Self::Stopping => "The server is stopping",
        }
    }

    fn detail(&self) -> Cow<'_, str> {
        match self {
            Self::MissingKey => {
                "This operation must not happen twice. Send an Idempotency-Key: a new key for each request, and the \
                 same key for its retries."
                    .into()
            }
            Self::BadKey(reason) => reason.as_ref().into(),
            Self::NoPrincipal => "An Idempotency-Key belongs to a user. Log in, then send the request again.".into(),
            Self::Grpc => "This server cannot replay a response of gRPC. Send the request without an Idempotency-Key, if it may be sent so.".into(),
            Self::RequestRefused(reason) => reason.as_str().into(),
            Self::BodyTooLarge { limit } => format!("This server accepts at most {limit} bytes. Send less.").into(),
            Self::BodyUnreadable => {
                "The end of the body did not arrive. Nothing was done: send the request again.".into()
            }
            Self::BodyTooSlow { limit } => {
                format!(
                "The end of the body did not arrive within {limit:?}. Nothing was done: send the request again."
            )
            .into()
            }
            Self::InFlight { .. } => {
                "The server is processing a request with the same key. Send the same request again later, with the same key.".into()
            }
            Self::KeyReused => {
                "The key was used for another request. If this is a new request, send it with a new key. If it is a retry, it differs \
                 from what was sent first: look at what that has done, and do not send it with a new key."
                    .into()
            }
            Self::Unknown { step } => format!(
                "An earlier request with this key broke off in the step {step:?}. The operator of the server has to find \
                 out whether the step happened. Until then the request does not run again."
            )
            .into(),
            Self::Poisoned { attempts } => format!(
                "{attempts} attempts of this request ended without a result. It does not run again until the operator of the server allows it, or until an hour has passed."
            )
            .into(),
            Self::Expired => {
                "The request was done, and its response has been deleted since. It does not run again.".into()
            }
            Self::ResponseNotKept { .. } => {
                "The first request got its response, but the server could not keep a copy. The request does not run again."
                    .into()
            }
            Self::HandlerPanicked => "The request broke off inside the server. Send it again, with the same key.".into(),
            Self::Damaged => "The operator of the server has to repair the record.".into(),
            Self::Misconfigured => "The operator of the server finds the reason in its log.".into(),
            Self::RunTooLong { limit } => format!(
                "The server has given the request up after {limit:?}. Send it again, with the same key."
            )
            .into(),
            Self::Overloaded | Self::Unavailable | Self::Stopping => {
                "Send the same request again later, with the same key.".into()
            }
        }
    }

    /// Retry-After in whole seconds. `usual` is the time that most attempts take.
    fn retry_after(&self, usual: Option<Duration>) -> Option<u64> {
        match self {
            Self::InFlight { remaining } => {
                let usual = usual.unwrap_or_default();
                // If the lease ends earlier, its process has gone, and the retry takes over.
                let wait = remaining.map_or(usual, |remaining| usual.min(remaining));
                let seconds = u64::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
                Some(seconds.clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end()))
            }
            Self::Overloaded | Self::RunTooLong { .. } => {
                Self::InFlight { remaining: None }.retry_after(usual)
            }
            // A client sends it again, though most 400s are final.
            Self::BodyUnreadable => Some(*RETRY_AFTER.start()),
            Self::Unavailable | Self::Stopping => Some(DATABASE_RETRY_AFTER),
            _ => None,
        }
    }

    /// `usual` is the time that most attempts take.
    pub(crate) fn response(
        &self,
        policy_url: &str,
        usual: Option<Duration>,
    ) -> Response<ResponseBody> {
        let (anchor, status) = self.kind();
        #[cfg(feature = "metrics")]
        metrics::counter!("rowlock_http_problems_total", "problem" => anchor).increment(1);
        let original_status = match self {
            Self::ResponseNotKept { status } => *status,
            _ => None,
        };
        let members = Members {
            r#type: format!("{policy_url}#{anchor}"),
            title: self.title(),
            status: status.as_u16(),
            detail: &self.detail(),
            original_status,
        };
        // Text and numbers can be said in JSON.
        let json = serde_json::to_vec(&members).unwrap_or_default();
        let mut response = Response::new(ResponseBody::of(Bytes::from(json)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, json);
        headers.insert(CONTENT_LANGUAGE, HeaderValue::from_static("en"));
        if matches!(self, Self::NoPrincipal) {
            // A 401 must have a challenge (RFC 9110, section 15.5.2). Bearer is the most common one.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after(usual) {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Problem; 21] {
        [
            Problem::MissingKey,
            Problem::BadKey("".into()),
            Problem::NoPrincipal,
            Problem::Grpc,
            Problem::RequestRefused(String::new()),
            Problem::BodyTooLarge { limit: 1 },
            Problem::BodyUnreadable,
            Problem::BodyTooSlow {
                limit: Duration::ZERO,
            },
            Problem::InFlight { remaining: None },
            Problem::KeyReused,
            Problem::Unknown { step: "s".into() },
            Problem::Poisoned { attempts: 5 },
            Problem::Expired,
            Problem::ResponseNotKept { status: Some(200) },
            Problem::HandlerPanicked,
            Problem::RunTooLong {
                limit: Duration::ZERO,
            },
            Problem::Overloaded,
            Problem::Damaged,
            Problem::Misconfigured,
            Problem::Unavailable,
            Problem::Stopping,
        ]
    }

    #[test]
    fn the_link_of_every_problem_leads_to_a_heading() {
        let text = include_str!("lib.rs");
        for problem in all() {
            let heading = format!("//! ## {}\n", problem.kind().0);
            assert!(text.contains(&heading), "{heading}");
        }
    }

    #[test]
    fn retry_after_is_the_usual_time_in_whole_seconds() {
        let after = |usual: Option<u64>, remaining: Option<u64>| {
            let remaining = remaining.map(Duration::from_millis);
            let in_flight = Problem::InFlight { remaining };
            in_flight.retry_after(usual.map(Duration::from_millis))
        };
        assert_eq!(after(None, None), Some(1));
        assert_eq!(after(None, Some(30_000)), Some(1));
        assert_eq!(after(Some(3), Some(30_000)), Some(1));
        assert_eq!(after(Some(1_001), Some(30_000)), Some(2));
        assert_eq!(after(Some(20_000), None), Some(20));
        assert_eq!(after(Some(20_000), Some(7_500)), Some(8));
        assert_eq!(after(Some(20_000), Some(0)), Some(1));
        assert_eq!(after(Some(1_000_000), None), Some(300));
    }
}
