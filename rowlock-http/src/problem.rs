//! Refusals, as `application/problem+json` (RFC 9457).

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, CONTENT_LANGUAGE, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use rowlock::Error;
use serde::Serialize;

use crate::body::ResponseBody;

/// What a client is told to wait for the database.
const DATABASE_RETRY_AFTER: u64 = 5;
/// The bounds of what it is told to wait for an attempt.
const RETRY_AFTER: RangeInclusive<u64> = 1..=300;

/// Why a request is not answered by the handler.
#[derive(Debug)]
pub(crate) enum Problem {
    MissingKey,
    BadKey(Cow<'static, str>),
    NoPrincipal,
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
    Damaged,
    Misconfigured,
    Unavailable,
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
    /// What an error of rowlock's is to a client. The details are for the log.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Superseded { .. } => Self::InFlight { remaining: None },
            Error::StepUnknown { step, .. } => Self::Unknown { step: step.clone() },
            Error::CorruptRecord { .. } => {
                tracing::error!(%error, "a request is refused");
                Self::Damaged
            }
            Error::InvalidSetting { .. }
            | Error::InvalidDuration { .. }
            | Error::InvalidKey { .. }
            | Error::OutcomeTooLarge { .. } => {
                tracing::error!(%error, "requests are refused: the layer is set up wrongly");
                Self::Misconfigured
            }
            _ => {
                tracing::error!(%error, "a request is refused");
                Self::Unavailable
            }
        }
    }

    /// Its anchor in the documentation, its status and its title.
    fn kind(&self) -> (&'static str, StatusCode, &'static str) {
        match self {
            Self::MissingKey => (
                "missing-key",
                StatusCode::BAD_REQUEST,
                "Idempotency-Key is missing",
            ),
            Self::BadKey(_) => (
                "bad-key",
                StatusCode::BAD_REQUEST,
                "Idempotency-Key is malformed",
            ),
            Self::NoPrincipal => (
                "no-principal",
                StatusCode::UNAUTHORIZED,
                "Nobody is logged in",
            ),
            Self::BodyTooLarge { .. } => (
                "body-too-large",
                StatusCode::PAYLOAD_TOO_LARGE,
                "The request is too large",
            ),
            Self::BodyUnreadable => (
                "body-unreadable",
                StatusCode::BAD_REQUEST,
                "The request broke off",
            ),
            Self::BodyTooSlow { .. } => (
                "body-too-slow",
                StatusCode::REQUEST_TIMEOUT,
                "The request is too slow",
            ),
            Self::InFlight { .. } => (
                "in-flight",
                StatusCode::CONFLICT,
                "A request is outstanding for this Idempotency-Key",
            ),
            Self::KeyReused => (
                "key-reused",
                StatusCode::UNPROCESSABLE_ENTITY,
                "Idempotency-Key is already used",
            ),
            Self::Unknown { .. } => (
                "unknown",
                StatusCode::CONFLICT,
                "Whether it happened is not known",
            ),
            Self::Poisoned { .. } => ("poisoned", StatusCode::CONFLICT, "It has failed too often"),
            Self::Expired => ("expired", StatusCode::GONE, "Idempotency-Key is too old"),
            Self::ResponseNotKept { .. } => (
                "response-not-kept",
                StatusCode::GONE,
                "It was done, and its response was not kept",
            ),
            Self::HandlerPanicked => (
                "handler-panicked",
                StatusCode::INTERNAL_SERVER_ERROR,
                "The server failed",
            ),
            Self::Damaged => (
                "damaged",
                StatusCode::INTERNAL_SERVER_ERROR,
                "The record of this Idempotency-Key is damaged",
            ),
            Self::Misconfigured => (
                "misconfigured",
                StatusCode::INTERNAL_SERVER_ERROR,
                "The server is set up wrongly",
            ),
            Self::Unavailable => (
                "unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                "The database is out of reach",
            ),
        }
    }

    fn detail(&self) -> Cow<'_, str> {
        match self {
            Self::MissingKey => {
                "This operation must not happen twice: send an Idempotency-Key, a new one for each request and the \
                 same one for its retries."
                    .into()
            }
            Self::BadKey(reason) => reason.as_ref().into(),
            Self::NoPrincipal => "A key belongs to somebody: log in, then send the request again.".into(),
            Self::BodyTooLarge { limit } => format!("At most {limit} bytes are accepted.").into(),
            Self::BodyUnreadable => "Its body did not come to its end.".into(),
            Self::BodyTooSlow { limit } => {
                format!("Its body did not come to its end within {limit:?}.").into()
            }
            Self::InFlight { .. } => {
                "A request with the same key is being processed: try again later, with the same key.".into()
            }
            Self::KeyReused => {
                "The key was used for another request: a new request needs a new key.".into()
            }
            Self::Unknown { step } => format!(
                "An earlier request with this key broke off in the step {step:?}, and somebody has to find out \
                 whether it happened. It is not run again until then."
            )
            .into(),
            Self::Poisoned { attempts } => format!(
                "{attempts} attempts broke off without a trace: somebody has to look at it before it is run again."
            )
            .into(),
            Self::Expired => {
                "It was done so long ago that the response is not kept any more. It is not run again.".into()
            }
            Self::ResponseNotKept { .. } => {
                "The first request got a response that was too large to be kept, or broke off. It is not run again."
                    .into()
            }
            Self::HandlerPanicked => "It broke off inside the server.".into(),
            Self::Damaged => "Somebody has to repair it.".into(),
            Self::Misconfigured => "The server's log tells more.".into(),
            Self::Unavailable => "Try again later, with the same key.".into(),
        }
    }

    /// Whole seconds. `usual`: how long attempts take.
    fn retry_after(&self, usual: Option<Duration>) -> Option<u64> {
        match self {
            Self::InFlight { remaining } => {
                let usual = usual.unwrap_or_default();
                // When the lease ends before that, its holder has vanished, and the retry takes over.
                let wait = remaining.map_or(usual, |remaining| usual.min(remaining));
                let seconds = u64::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
                Some(seconds.clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end()))
            }
            Self::Unavailable => Some(DATABASE_RETRY_AFTER),
            _ => None,
        }
    }

    /// `usual` is how long attempts take.
    pub(crate) fn response(
        &self,
        policy_url: &str,
        usual: Option<Duration>,
    ) -> Response<ResponseBody> {
        let (anchor, status, title) = self.kind();
        let original_status = match self {
            Self::ResponseNotKept { status } => *status,
            _ => None,
        };
        let members = Members {
            r#type: format!("{policy_url}#{anchor}"),
            title,
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
            // A 401 has to have a challenge (RFC 9110, section 15.5.2); the most common one.
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

    fn all() -> [Problem; 16] {
        [
            Problem::MissingKey,
            Problem::BadKey("".into()),
            Problem::NoPrincipal,
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
            Problem::Damaged,
            Problem::Misconfigured,
            Problem::Unavailable,
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
