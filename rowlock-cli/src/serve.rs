//! Serves a router on a port that anybody may connect to.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// The time for the header of a request. A connection that sends none for so long is closed.
const HEADER: Duration = Duration::from_secs(10);

/// The most connections at a time. Others wait until one ends. (A process may have 256 files and connections where its
/// limit is low, and the client of the database has some.)
const CONNECTIONS: usize = 200;

/// Serves until this is dropped.
pub(crate) async fn serve(mut listener: TcpListener, router: Router) -> ! {
    let mut http = Builder::new(TokioExecutor::new()).http1_only();
    let timer = TokioTimer::new();
    http.http1().timer(timer).header_read_timeout(HEADER);
    let (http, room) = (Arc::new(http), Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let place = Arc::clone(&room).acquire_owned().await;
        // (It waits after an error.)
        let (connection, _) = Listener::accept(&mut listener).await;
        let (http, router) = (Arc::clone(&http), router.clone());
        tokio::spawn(async move {
            let service = TowerToHyperService::new(router);
            let served = http.serve_connection(TokioIo::new(connection), service);
            if let Err(error) = served.await {
                tracing::debug!(error, "a connection to the console has ended");
            }
            drop(place);
        });
    }
}
