//! Limits on the time that a client may take to send its request: otherwise each slow one keeps a connection, and memory, for
//! as long as it likes. And the end: what has begun is finished, within a limit.

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

/// How long a client may take, and the server itself when it stops.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Until the head of a request has come, also from the end of the one before.
    pub head: Duration,
    /// For the whole body, from the end of the head.
    pub body: Duration,
    /// For what has begun when the server stops.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(30),
            body: Duration::from_secs(30),
            // Longer than a call of the provider may take. A supervisor must wait at least as long before it sends SIGKILL.
            stop: Duration::from_mins(1),
        }
    }
}

/// Serves until `over`, and then until every request that has come is answered and nothing is under way behind `layer`: it goes on
/// when a client hangs up. False: that took longer than the limit, and was left. (`axum::serve` has no limits.)
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
            // Tries again by itself, when there are too many open files, say.
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut over => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            // A client that broke off knows.
            let _ = connection.await;
        });
    }
    drop(listener);
    let finished = async {
        connections.shutdown().await;
        layer.idle().await;
    };
    timeout(limits.stop, finished).await.is_ok()
}

/// A body that fails when it takes too long.
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
            return Poll::Ready(Some(Err("the body of the request took too long".into())));
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
