//! actix-web has the types of an older version of the crate `http`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::{StatusCode, Version, header};
use actix_web::test::TestRequest;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Body;

use super::broken;
use crate::body::{BoxError, ResponseBody};

/// The head of a request, without actix-web's extensions.
pub(super) fn head(request: &HttpRequest) -> Result<Parts, http::Error> {
    let version = match request.version() {
        Version::HTTP_09 => http::Version::HTTP_09,
        Version::HTTP_10 => http::Version::HTTP_10,
        Version::HTTP_2 => http::Version::HTTP_2,
        Version::HTTP_3 => http::Version::HTTP_3,
        _ => http::Version::HTTP_11,
    };
    let head = Request::builder()
        .method(request.method().as_str())
        .uri(request.uri().to_string())
        .version(version)
        .body(())?;
    let (mut head, ()) = head.into_parts();
    head.headers = headers(request.headers());
    Ok(head)
}

/// The head of a request, for one that is gone: actix-web wants a request for each response.
pub(super) fn same(request: &HttpRequest) -> TestRequest {
    let same = TestRequest::with_uri(&request.uri().to_string())
        .method(request.method().clone())
        .version(request.version());
    let same = match request.peer_addr() {
        Some(address) => same.peer_addr(address),
        None => same,
    };
    (request.headers().iter()).fold(same, TestRequest::append_header)
}

/// Both versions of `http` allow the same names and values.
fn headers(from: &header::HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(from.len());
    for (name, value) in from {
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
            headers.append(name, value);
        }
    }
    headers
}

/// The handler's response. It has done its work, so this does not fail.
pub(super) fn answer<B>(response: &HttpResponse<()>, body: B) -> Response<B> {
    let mut answer = Response::new(body);
    let status = http::StatusCode::from_u16(response.status().as_u16());
    *answer.status_mut() = status.unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    *answer.headers_mut() = headers(response.headers());
    answer
}

/// The layer's response.
pub(super) fn response(response: Response<ResponseBody>) -> HttpResponse {
    let (head, body) = response.into_parts();
    let status = StatusCode::from_u16(head.status.as_u16());
    let mut answer = HttpResponse::new(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR));
    for (name, value) in &head.headers {
        let name = header::HeaderName::from_bytes(name.as_str().as_bytes());
        let value = header::HeaderValue::from_bytes(value.as_bytes());
        if let (Ok(name), Ok(value)) = (name, value) {
            answer.headers_mut().append(name, value);
        }
    }
    answer.set_body(BoxBody::new(Sending(body)))
}

/// A body that is sent.
struct Sending(ResponseBody);

impl MessageBody for Sending {
    type Error = io::Error;

    fn size(&self) -> BodySize {
        match self.0.size_hint().exact() {
            Some(bytes) => BodySize::Sized(bytes),
            None => BodySize::Stream,
        }
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, io::Error>>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.0).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(broken(error)))),
                None => return Poll::Ready(None),
            };
            // actix-web sends no trailers.
            if let Ok(data) = frame.into_data() {
                return Poll::Ready(Some(Ok(data)));
            }
        }
    }
}

/// The length of a body that the handler sends, if it is known.
pub(super) fn length(size: BodySize) -> Option<u64> {
    match size {
        BodySize::None => Some(0),
        BodySize::Sized(bytes) => Some(bytes),
        BodySize::Stream => None,
    }
}

/// The next part of a body.
pub(super) fn part<E: Into<Box<dyn std::error::Error>>>(
    part: Result<Bytes, E>,
) -> Result<Bytes, BoxError> {
    part.map_err(|error| broken(error.into()).into())
}
