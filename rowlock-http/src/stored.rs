//! Responses as outcomes: an HTTP/1.1 message, or a mark that the response was not kept.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode};
use http_body::Body as _;
use rowlock::layer::LayerKeys as _;
use rowlock::{Error, Outcome, RecordError, RecordKey};

use crate::body::{Ahead, ResponseBody};
use crate::panics;
use crate::problem::Problem;
use crate::settings::{Replayed, Settings};

const MESSAGE: &str = "message/http";
/// A message that the application has sealed.
const SEALED: &str = "application/vnd.rowlock.sealed";
/// Such an outcome is the status code of a response that was sent, but not kept.
const NOT_KEPT: &str = "application/vnd.rowlock.response-not-kept";

pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const YES: HeaderValue = HeaderValue::from_static("true");

/// The outcome to keep for a response whose body has been read ahead: the response, or a mark that it was not kept.
pub(crate) fn outcome(
    head: &Parts,
    body: Option<&[u8]>,
    record: &RecordKey,
    settings: &Settings,
) -> Result<Outcome, Error> {
    if let Some(body) = body {
        match message(head, body, record, settings) {
            Err(
                error @ Error::Record(
                    RecordError::OutcomeTooLarge { .. } | RecordError::ResponseFailed { .. },
                ),
            ) => {
                tracing::warn!(%error, %record, "a response is not kept");
            }
            message => return message,
        }
    } else {
        let (status, limit) = (head.status, settings.max_response());
        tracing::warn!(%status, limit, %record, "a response is not kept: it is too large, breaks off, or has trailers");
    }
    not_kept(head.status)
}

/// Reads the body ahead. `None`: it cannot be kept.
pub(crate) async fn whole(
    head: &Parts,
    body: &mut ResponseBody,
    settings: &Settings,
) -> Option<Vec<u8>> {
    // A stream of events ends only when a side hangs up.
    let endless = head.headers.get(CONTENT_TYPE).is_some_and(|value| {
        let name = "text/event-stream";
        let start = value.as_bytes().get(..name.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
    });
    if endless {
        return None;
    }
    // The length may be that of another response: HEAD, 204, 304 (RFC 9110, section 8.6).
    let has_none = body.size_hint().exact() == Some(0);
    match body.read_ahead(settings.max_response()).await {
        Ahead::Whole(bytes) if has_none || is_of_its_length(head, &bytes) => Some(bytes),
        Ahead::Whole(_) | Ahead::Trailers | Ahead::TooLarge { .. } | Ahead::Failed(_) => None,
    }
}

/// Whether the body is as long as the handler has said, if it has.
fn is_of_its_length(head: &Parts, body: &[u8]) -> bool {
    let said = head.headers.get(CONTENT_LENGTH);
    let said = said.and_then(|said| said.to_str().ok()?.trim().parse().ok());
    said.is_none_or(|said: usize| said == body.len())
}

/// A mark: there was a response with this status, and it was not kept.
pub(crate) fn not_kept(status: StatusCode) -> Result<Outcome, Error> {
    Outcome::new(NOT_KEPT, status.as_str())
}

/// A response as an HTTP/1.1 message, without what the application takes out of it, and sealed if it seals.
pub(crate) fn message(
    head: &Parts,
    body: &[u8],
    record: &RecordKey,
    settings: &Settings,
) -> Result<Outcome, Error> {
    let failed = |detail: String| Error::Record(RecordError::ResponseFailed { detail });
    let panicked = |name| failed(format!("the layer's `{name}` panicked"));
    let mut redacted = settings
        .redact
        .is_some()
        .then(|| (head.clone(), body.to_vec()));
    if let (Some(redact), Some((head, body))) = (&settings.redact, &mut redacted) {
        panics::catch("redact", || redact(head, body)).ok_or_else(|| panicked("redact"))?;
    }
    let (head, body) = redacted
        .as_ref()
        .map_or((head, body), |(head, body)| (head, body));
    let reason = head.status.canonical_reason().unwrap_or_default();
    let mut message = format!("HTTP/1.1 {} {reason}\r\n", head.status.as_str()).into_bytes();
    for (name, value) in &head.headers {
        if settings.keeps(head.status, name) {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                message.extend_from_slice(part);
            }
        }
    }
    message.extend_from_slice(b"\r\n");
    message.extend_from_slice(body);
    let content_type = match &settings.seal {
        Some(seal) => {
            let sealed = panics::catch("seal", || (seal.seal)(record, &message));
            let sealed = sealed.ok_or_else(|| panicked("seal"))?;
            message = sealed.map_err(|error| failed(format!("it cannot be sealed: {error}")))?;
            SEALED
        }
        None => MESSAGE,
    };
    let limit = settings.idempotency.largest_outcome();
    if message.len() > limit {
        return Err(Error::Record(RecordError::OutcomeTooLarge {
            what: "the response",
            bytes: message.len(),
            limit,
        }));
    }
    Outcome::new(content_type, message)
}

/// The response that a retry gets.
pub(crate) fn replay(
    outcome: &Outcome,
    record: &RecordKey,
    settings: &Settings,
) -> Result<Response<ResponseBody>, Problem> {
    let mut response = match outcome.content_type() {
        other if settings.replayed == Replayed::Sealed && ![SEALED, NOT_KEPT].contains(&other) => {
            tracing::error!(%record, "a kept response is not sealed, and the layer replays sealed ones only");
            return Err(Problem::ResponseNotKept { status: None });
        }
        MESSAGE => parse(&shared(outcome)).ok_or(Problem::Damaged)?,
        SEALED => {
            let seal = settings.seal.as_ref().ok_or_else(|| {
                tracing::error!(%record, "a kept response is sealed, and the layer has no IdempotencyLayer::seal to open it");
                Problem::Misconfigured
            })?;
            let opened = panics::catch("open", || (seal.open)(record, outcome.bytes()));
            let opened = opened.ok_or(Problem::Damaged)?.map_err(|error| {
                tracing::error!(%error, %record, "a kept response cannot be opened");
                Problem::Damaged
            })?;
            parse(&opened.into()).ok_or(Problem::Damaged)?
        }
        NOT_KEPT => {
            let text = std::str::from_utf8(outcome.bytes()).ok();
            let status = text.and_then(|text| text.parse().ok());
            return Err(Problem::ResponseNotKept { status });
        }
        // The handler itself has completed the attempt, or an operator has resolved the record.
        other => {
            let content_type = HeaderValue::from_str(other).map_err(|_| Problem::Damaged)?;
            let body = ResponseBody::of(shared(outcome));
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            response
        }
    };
    response.headers_mut().insert(REPLAYED, YES);
    Ok(response)
}

/// What is left of the response to an event that was done: its status, if that is known.
pub(crate) fn acknowledgement(status: Option<u16>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::of(Bytes::new()));
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    *response.status_mut() = status.unwrap_or_default();
    response.headers_mut().insert(REPLAYED, YES);
    response
}

/// The bytes of an outcome, which many replays may have at once: they are not copied.
fn shared(outcome: &Outcome) -> Bytes {
    struct Kept(Outcome);

    impl AsRef<[u8]> for Kept {
        fn as_ref(&self) -> &[u8] {
            self.0.bytes()
        }
    }

    Bytes::from_owner(Kept(outcome.clone()))
}

fn parse(message: &Bytes) -> Option<Response<ResponseBody>> {
    let mut room = 32;
    loop {
        let mut lines = vec![httparse::EMPTY_HEADER; room];
        let mut head = httparse::Response::new(&mut lines);
        return match head.parse(message) {
            Ok(httparse::Status::Complete(length)) => response(&head, message.slice(length..)),
            Err(httparse::Error::TooManyHeaders) if room < message.len() => {
                room *= 2;
                continue;
            }
            _ => None,
        };
    }
}

fn response(head: &httparse::Response<'_, '_>, body: Bytes) -> Option<Response<ResponseBody>> {
    let mut response = Response::new(ResponseBody::of(body));
    *response.status_mut() = StatusCode::from_u16(head.code?).ok()?;
    for line in head.headers.iter() {
        let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
        let value = HeaderValue::from_bytes(line.value).ok()?;
        response.headers_mut().append(name, value);
    }
    Some(response)
}
