//! Another version of axum than the one whose `OriginalUri` the layer reads: nothing is taken for granted there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum_0_7::Router;
use axum_0_7::extract::OriginalUri;
use axum_0_7::http::request::Parts;
use axum_0_7::routing::post;
use rowlock_http::IdempotencyLayer;
use tokio::net::TcpListener;

use crate::server::{Answer, Server, over_a_socket, send};

/// The layer on the database of `server`, behind a prefix. What comes of the same request to two tenants, and how
/// often the handler has run.
async fn two_tenants(
    server: &Server,
    set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
) -> ([Answer; 2], u32) {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let pay = move || async move { counted.fetch_add(1, Ordering::SeqCst).to_string() };
    let me = |_: &Parts| Some("ann");
    let layer = set(IdempotencyLayer::new(server.rowlock.idempotency(), me));
    let inner = Router::new().route("/pay", post(pay)).layer(layer);
    let app = Router::new().nest("/tenants/:t", inner);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum_0_7::serve(listener, app).await });
    let ask = |tenant: &str| {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = client.post(format!("http://{address}/tenants/{tenant}/pay"));
        send(request.header("idempotency-key", "\"k\"").body("100"))
    };
    let answers = [ask("a").await, ask("b").await];
    (answers, runs.load(Ordering::SeqCst))
}

over_a_socket! {
    async fn every_request_is_refused_until_the_uri_is_told() {
        let server = Server::plain().await;
        let (answers, runs) = two_tenants(&server, |layer| layer).await;
        for answer in answers {
            answer.is_problem(500, "misconfigured");
        }
        assert_eq!(runs, 0);
        let (answers, runs) = two_tenants(&server, |layer| {
            layer.uri(|parts| parts.extensions.get::<OriginalUri>().unwrap().0.clone())
        })
        .await;
        answers[0].is_new(200);
        answers[1].is_problem(422, "key-reused");
        assert_eq!(runs, 1);
    }
}
