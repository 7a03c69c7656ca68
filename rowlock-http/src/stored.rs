//! Responses as outcomes: an HTTP/1.1 message, or a mark that the response was not kept.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode};
use rowlock::{Error, Outcome};

use crate::body::{Ahead, ResponseBody};
use crate::problem::Problem;
use crate::settings::Settings;

const MESSAGE: &str = "message/http";
/// Such an outcome is the status code of a response that was sent, but not kept.
const NOT_KEPT: &str = "application/vnd.rowlock.response-not-kept";

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The outcome to keep for a response: the response, or a mark that it was not kept.
pub(crate) async fn outcome(
    head: &Parts,
    body: &mut ResponseBody,
    settings: &Settings,
) -> Result<Outcome, Error> {
    let limit = settings.max_response();
    // A stream of events ends only when a side hangs up.
    let endless = head.headers.get(CONTENT_TYPE).is_some_and(|value| {
        let name = "text/event-stream";
        let start = value.as_bytes().get(..name.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
    });
    if !endless && let Ahead::Whole(bytes) = body.read_ahead(limit).await {
        match message(head, &bytes, settings) {
            Err(Error::OutcomeTooLarge { .. }) => {}
            message => return message,
        }
    }
    tracing::warn!(status = %head.status, limit, "a response is not kept: it is too large, breaks off, or has trailers");
    not_kept(head.status)
}

/// A mark: there was a response with this status, and it was not kept.
pub(crate) fn not_kept(status: StatusCode) -> Result<Outcome, Error> {
    Outcome::new(NOT_KEPT, status.as_str())
}

/// A response as an HTTP/1.1 message.
pub(crate) fn message(head: &Parts, body: &[u8], settings: &Settings) -> Result<Outcome, Error> {
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
    let limit = settings.idempotency.largest_outcome();
    if message.len() > limit {
        return Err(Error::OutcomeTooLarge {
            what: "the response",
            bytes: message.len(),
            limit,
        });
    }
    Outcome::new(MESSAGE, message)
}

/// The response that a retry gets.
pub(crate) fn replay(outcome: &Outcome) -> Result<Response<ResponseBody>, Problem> {
    let mut response = match outcome.content_type() {
        MESSAGE => parse(outcome.bytes()).ok_or(Problem::Damaged)?,
        NOT_KEPT => {
            let text = std::str::from_utf8(outcome.bytes()).ok();
            let status = text.and_then(|text| text.parse().ok());
            return Err(Problem::ResponseNotKept { status });
        }
        // The handler itself has completed the attempt, or an operator has resolved the record.
        other => {
            let content_type = HeaderValue::from_str(other).map_err(|_| Problem::Damaged)?;
            let body = ResponseBody::of(Bytes::copy_from_slice(outcome.bytes()));
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            response
        }
    };
    let yes = HeaderValue::from_static("true");
    response.headers_mut().insert(REPLAYED, yes);
    Ok(response)
}

fn parse(message: &[u8]) -> Option<Response<ResponseBody>> {
    let mut room = 32;
    loop {
        let mut lines = vec![httparse::EMPTY_HEADER; room];
        let mut head = httparse::Response::new(&mut lines);
        return match head.parse(message) {
            Ok(httparse::Status::Complete(length)) => response(&head, &message[length..]),
            Err(httparse::Error::TooManyHeaders) if room < message.len() => {
                room *= 2;
                continue;
            }
            _ => None,
        };
    }
}

fn response(head: &httparse::Response<'_, '_>, body: &[u8]) -> Option<Response<ResponseBody>> {
    let mut response = Response::new(ResponseBody::of(Bytes::copy_from_slice(body)));
    *response.status_mut() = StatusCode::from_u16(head.code?).ok()?;
    for line in head.headers.iter() {
        let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
        let value = HeaderValue::from_bytes(line.value).ok()?;
        response.headers_mut().append(name, value);
    }
    Some(response)
}
