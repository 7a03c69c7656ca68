//! The layer inside a router that removes a prefix of the path, so that two tenants' requests look alike.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::middleware::{self, Next};
use axum::routing::{any, post};
use rowlock::RecordState;
use rowlock_http::IdempotencyLayer;
use tower_layer::Layer as _;

use crate::framework::Run;
use crate::server::{Answer, Server, over_a_socket, send};
use crate::shop::{Shop, handle};

type Routes = Router<Arc<Shop>>;

async fn server(
    set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
    routes: impl FnOnce(IdempotencyLayer, Arc<Shop>) -> Routes,
) -> Server {
    Server::routed(|records| records, set, routes, Run::default()).await
}

async fn pay(server: &Server, path: &str) -> Answer {
    let request = server
        .request("POST", path)
        .header("idempotency-key", "\"k\"");
    send(request.header("x-user", "ann").body("100")).await
}

/// The handler sees one path, the client has asked for two.
async fn are_two_requests(server: &Server, one: &str, other: &str, seen: &str) {
    let first = pay(server, one).await;
    assert_eq!(first.is_new(201).text(), format!("run 1: POST {seen} 100"));
    pay(server, other).await.is_problem(422, "key-reused");
    pay(server, one).await.is_replay_of(&first);
    assert_eq!(server.shop.runs(), 1);
}

over_a_socket! {
    async fn a_prefix_with_a_capture_counts() {
        let server = server(|layer| layer, |layer, _| {
            let inner = Router::new().route("/pay", post(handle)).layer(layer);
            Router::new().nest("/tenants/{t}", inner)
        })
        .await;
        are_two_requests(&server, "/tenants/a/pay", "/tenants/b/pay", "/pay").await;
    }

    async fn a_prefix_counts_around_a_route() {
        let server = server(|layer| layer, |layer, _| {
            let inner = || Router::new().route("/{id}/pay", post(handle)).route_layer(layer.clone());
            Router::new().nest("/a", inner()).nest("/b", inner())
        })
        .await;
        are_two_requests(&server, "/a/7/pay?x=1", "/b/7/pay?x=1", "/7/pay?x=1").await;
    }

    async fn prefixes_within_prefixes_count() {
        let server = server(|layer| layer, |layer, _| {
            let inner = Router::new().route("/pay", any(handle)).layer(layer);
            let middle = Router::new().nest("/shops/{s}", inner);
            Router::new().nest("/tenants/{t}", middle)
        })
        .await;
        are_two_requests(&server, "/tenants/a/shops/1/pay", "/tenants/b/shops/1/pay", "/pay").await;
    }

    async fn the_prefix_of_a_nested_service_counts() {
        let server = server(|layer| layer, |layer, shop| {
            let inner: Router = Router::new().route("/pay", post(handle)).with_state(shop);
            Router::new().nest_service("/tenants/{t}", layer.layer(inner))
        })
        .await;
        are_two_requests(&server, "/tenants/a/pay", "/tenants/b/pay", "/pay").await;
    }

    /// In front of the inner router something changes the path that it is given: the original one does not tell.
    async fn a_path_that_was_rewritten_counts() {
        let server = server(|layer| layer, |layer, shop| {
            let rewrite = async |mut request: Request, next: Next| {
                let tenant = request.headers()["x-act"].to_str().unwrap();
                *request.uri_mut() = format!("/{tenant}/pay").parse().unwrap();
                next.run(request).await
            };
            let inner: Router = Router::new().route("/{t}/pay", post(handle)).layer(layer).with_state(shop);
            let inner = middleware::from_fn(rewrite).layer(inner);
            Router::new().fallback_service(inner)
        })
        .await;
        send(server.pay("k", "201")).await.is_new(201);
        send(server.pay("k", "202")).await.is_problem(422, "key-reused");
    }

    async fn the_uri_can_be_told() {
        #[derive(Clone)]
        struct Asked(Uri);
        let told = |layer: IdempotencyLayer| {
            layer.uri(|parts| parts.extensions.get::<Asked>().unwrap().0.clone())
        };
        let server = server(told, |layer, _| {
            let tell = async |mut request: Request, next: Next| {
                let uri = request.headers()["x-act"].to_str().unwrap();
                let uri = format!("/{uri}?x").parse().unwrap();
                request.extensions_mut().insert(Asked(uri));
                next.run(request).await
            };
            let told = middleware::from_fn(tell);
            Router::new().route("/{*rest}", any(handle)).layer(layer).layer(told)
        })
        .await;
        let first = send(server.pay("k", "201")).await;
        first.is_new(201);
        send(server.pay("k", "202")).await.is_problem(422, "key-reused");
        let same = server.request("POST", "/elsewhere").header("idempotency-key", "\"k\"");
        let same = same.header("x-user", "ann").header("x-act", "201").body("100");
        send(same).await.is_replay_of(&first);
    }

    async fn a_layer_inside_of_the_same_layer_is_told_from_a_request_that_runs() {
        // It does not wait for itself.
        let records = |records: rowlock::Idempotency| records.wait(Duration::from_hours(1));
        let routes = |layer: IdempotencyLayer, _| {
            let inner = Router::new().route("/pay", post(handle)).layer(layer.clone());
            Router::new().nest("/shop", inner).layer(layer)
        };
        let server = Server::routed(records, |layer| layer, routes, Run::default()).await;
        for _ in 0..2 {
            pay(&server, "/shop/pay").await.is_problem(500, "misconfigured");
        }
        assert_eq!(server.shop.runs(), 0);
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Free);
    }

    async fn layers_with_other_records_may_stand_inside_of_each_other() {
        let server = server(|layer| layer, |layer, _| {
            let inner = Router::new().route("/pay", post(handle));
            let inner = inner.layer(layer.clone().key_from(|_| async { Ok::<_, String>(Some("other".into())) }));
            inner.layer(layer)
        })
        .await;
        let first = pay(&server, "/pay").await;
        first.is_new(201);
        pay(&server, "/pay").await.is_replay_of(&first);
        for key in ["k", "other"] {
            assert_eq!(server.record(key).await.unwrap().state, RecordState::Done);
        }
    }
}
