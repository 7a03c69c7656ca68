//! Responses with bodies of every kind.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONTENT_TYPE, TRAILER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

use crate::shop::Shop;

/// A body and headers that are no text.
pub(crate) fn odd() -> Response {
    let all: Vec<u8> = (0..=255).collect();
    let mut response = (StatusCode::MULTI_STATUS, all).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, "application/x-odd; a=\"b\"".parse().unwrap());
    headers.append("link", "</a>; rel=next".parse().unwrap());
    headers.append("link", "</b>; rel=last".parse().unwrap());
    headers.insert("etag", HeaderValue::from_bytes(b"\"\xff\x80\"").unwrap());
    headers.insert("cache-control", HeaderValue::from_static(""));
    response
}

/// The whole body, and a digest after it.
pub(crate) fn trailers(said: String) -> Response {
    let mut digest = HeaderMap::new();
    digest.insert("x-digest", HeaderValue::from_static("4711"));
    let frames = [Frame::data(Bytes::from(said)), Frame::trailers(digest)];
    let mut response = Body::new(Frames(frames.into())).into_response();
    let name = HeaderValue::from_static("x-digest");
    response.headers_mut().insert(TRAILER, name);
    response
}

/// A body that says it has 100 bytes, and has 50.
pub(crate) fn short() -> Response {
    Body::new(Short(Some(Bytes::from_static(&[b'x'; 50])))).into_response()
}

struct Short(Option<Bytes>);

impl HttpBody for Short {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(if self.0.is_some() { 100 } else { 50 })
    }
}

pub(crate) struct Panics;

impl HttpBody for Panics {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        panic!("as was asked")
    }
}

struct Frames(VecDeque<Frame<Bytes>>);

impl HttpBody for Frames {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// A body that comes piece by piece: `4x500` are four pieces of 500 bytes. It waits for the gate before the last one;
/// the last one of `4x500!` is an error. `events` are without an end.
pub(crate) fn stream(shop: Arc<Shop>, shape: &str) -> Response {
    let (pieces, breaks, events) = match shape {
        "events" => ("2x10", false, true),
        shape => (shape.trim_end_matches('!'), shape.ends_with('!'), false),
    };
    let (count, size) = pieces.split_once('x').unwrap();
    let (count, size): (usize, usize) = (count.parse().unwrap(), size.parse().unwrap());
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(async move {
        for number in 1..=count {
            if number == count {
                shop.wait().await;
            }
            let piece = if breaks && number == count {
                Err(io::Error::other("it breaks off"))
            } else {
                Ok(Bytes::from(vec![
                    b'0' + u8::try_from(number % 10).unwrap();
                    size
                ]))
            };
            let sent = send.send(piece).await;
            shop.note(format!("piece {number}"));
            if sent.is_err() {
                break;
            }
        }
    });
    let mut response = Body::new(Pieces(receive)).into_response();
    if events {
        let value = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}

pub(crate) fn stream_of(pieces: &[&'static [u8]]) -> Response {
    let (send, receive) = mpsc::channel(pieces.len());
    for piece in pieces {
        send.try_send(Ok(Bytes::from_static(piece))).unwrap();
    }
    Body::new(Pieces(receive)).into_response()
}

struct Pieces(mpsc::Receiver<Result<Bytes, io::Error>>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let piece = self.0.poll_recv(cx);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
