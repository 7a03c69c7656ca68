//! The attempt as an argument of axum's handlers.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use rowlock_http::Idempotent;

use crate::framework::Run;
use crate::server::{Server, over_a_socket};

over_a_socket! {
    async fn a_handler_outside_of_the_layer_has_no_attempt() {
        let required = async |_: Idempotent| StatusCode::OK;
        let optional = async |once: Option<Idempotent>| once.map_or("none", |_| "one");
        let routes = move |layer, _| {
            Router::new()
                .route("/inside", post(optional))
                .route("/required", post(required))
                .layer(layer)
                .route("/outside", post(optional))
                .route("/wrong", post(required))
        };
        let server = Server::routed(|it| it, |layer| layer.required(false), routes, Run::default()).await;
        assert_eq!(server.ask("/inside", "a").await.is_new(200).text(), "one");
        assert_eq!(server.ask("/inside", "").await.is_new(200).text(), "none");
        assert_eq!(server.ask("/outside", "b").await.is_new(200).text(), "none");
        server.ask("/required", "c").await.is_new(200);
        for (path, key) in [("/required", ""), ("/wrong", "d")] {
            server.ask(path, key).await.is_new(500);
        }
    }
}
