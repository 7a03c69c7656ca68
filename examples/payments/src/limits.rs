//! Limits on the time that a client may take to send its request. Without them, each slow client would hold a
//! connection and memory for as long as it likes. The server also ends within a limit: it first finishes the requests
//! that have begun.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::serve::Listener;
use http_body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rowlock_http::IdempotencyLayer;
use tokio::net::TcpListener;
use tokio::time::{Sleep, sleep, timeout};

/// How long a client may take to send a request, and how long the server may take to stop.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For the head of a request, counted from the start of the connection or from the end of the request before.
    pub head: Duration,
    /// For the whole body, counted from the end of the head.
    pub body: Duration,
    /// For requests that have begun when the server stops.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(30),
            body: Duration::from_secs(30),
            // Longer than a call to the provider may take. A supervisor must wait longer than this before it sends
            // SIGKILL.
            stop: Duration::from_mins(1),
        }
    }
}

/// Serves until `over`. Then it finishes the requests that have begun, also those whose clients have hung up (`layer`
/// knows them). Returns false if the limit ended this. (`axum::serve` has no limits.)
pub async fn serve(
    mut listener: TcpListener,
    router: Router,
    layer: IdempotencyLayer,
    limits: Limits,
    over: impl Future<Output = ()>,
) -> bool {
    let router = router.layer(axum::middleware::map_request(
        move |request: Request| async move {
            Ok::<_, Infallible>(request.map(|body| Body::new(Timed::new(body, limits.body))))
        },
    ));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head);
    let connections = GracefulShutdown::new();
    tokio::pin!(over);
    loop {
        let (stream, _) = tokio::select! {
            // This tries again after an error, for example when too many files are open.
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut over => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            // An error means that the client broke off.
            let _ = connection.await;
        });
    }
    drop(listener);
    // A connection whose client waits for a payment ends with the payment.
    let (left, closed) = tokio::join!(
        layer.drain(limits.stop),
        timeout(limits.stop, connections.shutdown())
    );
    for left in &left {
        eprintln!("payments: {left}");
    }
    left.is_empty() && closed.is_ok()
}

/// A body that fails at its time limit.
#[derive(Debug)]
struct Timed {
    body: Body,
    until: Pin<Box<Sleep>>,
}

impl Timed {
    fn new(body: Body, limit: Duration) -> Self {
        let until = Box::pin(sleep(limit));
        Self { body, until }
    }
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(
                "the body of the request did not arrive in time: send it again".into(),
            )));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
