//! Deployments that change what counts of a request, and services that share a database.

use axum::Router;
use axum::http::Uri;
use axum::routing::post;
use rowlock::{RecordState, Scope};
use rowlock_http::IdempotencyLayer;
use rowlock_test::eventually;

use crate::framework::Run;
use crate::server::{Answer, Server, over_a_socket, send};
use crate::shop::handle;

/// `/before` and `/after` are the same service in two releases, which count other things.
async fn releases(
    changes: impl FnOnce(IdempotencyLayer) -> (IdempotencyLayer, IdempotencyLayer),
) -> Server {
    let routes = |layer: IdempotencyLayer, _| {
        let (before, after) = changes(layer);
        let route = |layer| Router::new().route("/pay", post(handle)).layer(layer);
        Router::new()
            .nest("/before", route(before))
            .nest("/after", route(after))
    };
    let set = |layer: IdempotencyLayer| layer.uri(|_| Uri::from_static("/pay"));
    Server::routed(|records| records, set, routes, Run::default()).await
}

async fn ask(server: &Server, release: &str, act: &str, body: &'static str) -> Answer {
    let request = server.request("POST", &format!("/{release}/pay"));
    let request = request.header("idempotency-key", "\"k\"");
    let request = request.header("x-user", "ann").header("x-act", act);
    let request = request.header("content-type", "application/json");
    send(request.body(body)).await
}

fn counts_less(layer: IdempotencyLayer) -> (IdempotencyLayer, IdempotencyLayer) {
    let before = layer.clone().headers_count(["content-type"]);
    (before, layer.json_only(["$.cents"]))
}

over_a_socket! {
    async fn a_retry_goes_on_where_what_counts_has_changed() {
        for (first, then) in [("before", "after"), ("after", "before")] {
            let server = releases(|layer| {
                let (before, after) = counts_less(layer);
                (before.clone().also_accept(&after), after.also_accept(&before))
            });
            let server = server.await;
            // An attempt that runs, one that was given up after it was bound, and one that is done.
            let running = async { ask(&server, first, "wait", r#"{"cents":100}"#).await };
            let meanwhile = async {
                eventually("it runs", || async { server.shop.has_begun("k") }).await;
                ask(&server, then, "201", r#"{"cents":100}"#).await.is_problem(409, "in-flight");
                server.shop.gate.add_permits(1);
            };
            let (done, ()) = tokio::join!(running, meanwhile);
            done.is_new(201);
            ask(&server, then, "201", r#"{"cents":100}"#).await.is_replay_of(&done);
            ask(&server, then, "201", r#"{"cents":101}"#).await.is_problem(422, "key-reused");
            assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
        }
    }

    async fn a_step_has_one_downstream_key_where_what_counts_has_changed() {
        let server = releases(|layer| {
            let (before, after) = counts_less(layer);
            (before.clone(), after.also_accept(&before))
        });
        let server = server.await;
        ask(&server, "before", "steps 500", r#"{"cents":100}"#).await.is_new(500);
        ask(&server, "after", "steps 201", r#"{"cents":100}"#).await.is_new(201);
        let noted = server.shop.noted();
        assert_eq!(noted[0], noted[2], "the step is done once, under one key: {noted:?}");
    }

    async fn settings_that_are_also_accepted_are_checked() {
        let server = Server::new(|layer| {
            let wrong = layer.clone().also_accept(&layer.clone().json_only(["cents"]));
            assert!(wrong.check().unwrap_err().to_string().contains("json_only"));
            let wrong = layer.clone().service("a:b").check().unwrap_err();
            assert!(wrong.to_string().contains("service"), "{wrong}");
            layer
        });
        drop(server.await);
    }

    /// The gateway passes the client's key on to the service.
    async fn services_that_share_a_database_have_their_own_records() {
        let routes = |layer: IdempotencyLayer, _| {
            let inner = Router::new().route("/pay", post(handle));
            let inner = inner.layer(layer.clone().service("payments"));
            inner.layer(layer.service("gateway"))
        };
        let server = Server::routed(|records| records, |layer| layer, routes, Run::default()).await;
        let first = send(server.pay("k", "201")).await;
        first.is_new(201);
        send(server.pay("k", "201")).await.is_replay_of(&first);
        for scope in ["http:@gateway:ann", "http:@payments:ann"] {
            let record = server.rowlock.idempotency().inspect(Scope(scope).key("k")).await.unwrap();
            assert_eq!(record.unwrap().state, RecordState::Done, "{scope}");
        }
        assert_eq!(server.shop.runs(), 1);
    }
}
