//! How axum serves the shop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::{Router, routing::any};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rowlock::Idempotency;
use rowlock_http::IdempotencyLayer;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::server::{OPERATION, Place, Server};
use crate::shop::{Shop, handle};

/// It serves until it is told to stop, or for ever when that is dropped with the test.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Serving {
    /// Takes no more connections, and waits for the end of those that there are.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap();
    }
}

/// How connections are served.
#[derive(Clone, Copy)]
pub(crate) enum Hyper {
    AsAxumHasIt,
    /// A client may close its half of the connection, and is waited for.
    HalfClose,
}

/// How a server is run.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) hyper: Hyper,
    /// How long it waits for the database.
    pub(crate) timeout: Duration,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            hyper: Hyper::AsAxumHasIt,
            timeout: OPERATION,
        }
    }
}

/// What `axum::serve` does, with another setting of hyper's.
async fn half_close(listener: TcpListener, app: Router) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(app.clone());
        tokio::spawn(async move {
            let mut server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            server.http1().half_close(true);
            // Clients that are gone are errors.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// All routes are inside the layer.
pub(crate) async fn serve(layer: IdempotencyLayer, shop: &Arc<Shop>) -> Serving {
    let routes = Router::new().route("/{*rest}", any(handle)).layer(layer);
    serve_routes(routes, shop, Hyper::AsAxumHasIt).await
}

async fn serve_routes(routes: Router<Arc<Shop>>, shop: &Arc<Shop>, hyper: Hyper) -> Serving {
    let watched = Arc::clone(shop);
    let watch = move |request: Request, next: Next| {
        // Dropped with the answer that nobody waits for any more.
        let watch = watched.watch(request.headers());
        async move {
            let response = next.run(request).await;
            watch.answered();
            response
        }
    };
    let app = routes
        .layer(middleware::from_fn(watch))
        .with_state(Arc::clone(shop));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let ended = match hyper {
        Hyper::AsAxumHasIt => {
            let stopped = async move { drop(stopped.await) };
            let serving = axum::serve(listener, app).with_graceful_shutdown(stopped);
            tokio::spawn(async move { serving.await.unwrap() })
        }
        Hyper::HalfClose => tokio::spawn(half_close(listener, app)),
    };
    Serving {
        address,
        stop,
        ended,
    }
}

impl Server {
    /// With routes of its own.
    pub(crate) async fn routed(
        records: impl FnOnce(Idempotency) -> Idempotency,
        set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
        routes: impl FnOnce(IdempotencyLayer, Arc<Shop>) -> Router<Arc<Shop>>,
        run: Run,
    ) -> Self {
        let place = Place::new(records, set, run.timeout).await;
        let routes = routes(place.layer.clone(), Arc::clone(&place.shop));
        let serving = serve_routes(routes, &place.shop, run.hyper).await;
        place.at(serving)
    }
}
