//! Responses that say that nothing was done: 401, 405 and 407. And those that need a header of their own to be
//! replayed.

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{any, get, post};
use rowlock::RecordState;
use rowlock_http::{Finality, IdempotencyLayer, ServerError};

use crate::framework::Run;
use crate::server::{Server, over_a_socket, send};
use crate::shop::handle;

/// `/pay` takes POST, `/list` takes GET; the layer is around both.
async fn server(set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Server {
    let routes = |layer, _| {
        Router::new()
            .route("/pay", post(handle))
            .route("/list", get(handle))
            .route("/other", any(handle))
            .route("/json", post(json))
            .layer(layer)
    };
    Server::routed(|records| records, set, routes, Run::default()).await
}

/// What axum's `Json` does.
async fn json(headers: HeaderMap) -> Result<&'static str, StatusCode> {
    let is_json = headers["content-type"] == "application/json";
    is_json
        .then_some("read")
        .ok_or(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

over_a_socket! {
    async fn a_405_of_the_router_is_not_recorded() {
        for server_error in [ServerError::Transient, ServerError::Unknown] {
            let server = server(|layer| layer.server_error(server_error)).await;
            let list = || {
                let request = server.request("POST", "/list").header("idempotency-key", "\"k\"");
                request.header("x-user", "ann").body("100")
            };
            for _ in 0..2 {
                let refused = send(list()).await;
                assert_eq!(refused.is_new(405).header("allow"), Some("GET,HEAD"));
                assert_eq!(server.record("k").await.unwrap().state, RecordState::Free);
            }
            assert_eq!(server.shop.runs(), 0);
        }
        // The key is free for the corrected request.
        let server = server(|layer| layer).await;
        let refused = server.request("POST", "/list").header("idempotency-key", "\"k\"");
        send(refused.header("x-user", "ann").body("100")).await.is_new(405);
        send(server.pay("k", "201")).await.is_new(201);
    }

    async fn a_refusal_of_who_asks_frees_the_key() {
        for server_error in [ServerError::Transient, ServerError::Unknown] {
            let server = server(|layer| layer.server_error(server_error)).await;
            for status in [401, 407] {
                let key = status.to_string();
                for _ in 0..2 {
                    let refused = send(server.pay(&key, &format!("needs {status}"))).await;
                    refused.is_new(status);
                    let state = server.record(&key).await.unwrap().state;
                    assert_eq!(state, RecordState::Free, "{server_error:?} {status}");
                }
                let done = send(server.pay(&key, "201")).await;
                done.is_new(201);
                send(server.pay(&key, "201")).await.is_replay_of(&done);
            }
        }
    }

    async fn where_they_are_final_they_keep_the_header_that_they_need() {
        let server = server(|layer| layer.finality(|_, _| Finality::Keep)).await;
        for (status, name, value) in [(401, "www-authenticate", "Bearer"), (405, "allow", "GET,HEAD")] {
            let key = status.to_string();
            let first = send(server.pay(&key, &format!("needs {status}"))).await;
            assert_eq!(first.is_new(status).header(name), Some(value));
            let second = send(server.pay(&key, "201")).await;
            second.is_replay_of(&first);
            assert_eq!(second.header(name), Some(value));
        }
        // With another status they are not.
        let first = send(server.pay("k", "needs 403")).await;
        assert_eq!(first.is_new(403).header("allow"), Some("GET,HEAD"));
        let second = send(server.pay("k", "201")).await;
        second.is_replay_of(&first);
        assert_eq!((second.header("allow"), second.header("www-authenticate")), (None, None));
    }

    async fn a_wrong_content_type_is_corrected_under_the_same_key() {
        let server = server(|layer| layer).await;
        let ask = async |content_type: &'static str| {
            let request = server.request("POST", "/json").header("idempotency-key", "\"k\"");
            let request = request.header("x-user", "ann").header("content-type", content_type);
            send(request.body("{}")).await
        };
        ask("text/plain").await.is_new(415);
        let first = ask("application/json").await;
        assert_eq!(first.is_new(200).text(), "read");
        ask("application/json").await.is_replay_of(&first);
    }
}
