//! What a response means for its key, by its head and its body, and by what the handler says.

use std::time::Duration;

use rowlock::{Outcome, RecordState, Resolution, Scope};
use rowlock_http::{Finality, IdempotencyLayer, ServerError, scope};
use rowlock_test::eventually;

use crate::server::{Server, over_a_socket, send};

/// The body of a response has the body of its request.
fn by_the_body(layer: IdempotencyLayer) -> IdempotencyLayer {
    layer.finality(|head, body| {
        let has =
            |word: &str| body.is_some_and(|body| String::from_utf8_lossy(body).contains(word));
        match head.status.as_u16() {
            _ if has("not charged") => Finality::NothingHappened,
            _ if has("later") => Finality::Retry,
            _ if has("secret") => Finality::DoNotKeep,
            502 => Finality::Unknown,
            _ => Finality::of(head.status),
        }
    })
}

async fn state(server: &Server) -> RecordState {
    server.record("k").await.unwrap().state
}

over_a_socket! {
    async fn a_conflict_that_passes_is_not_kept() {
        let server = Server::plain().await;
        let first = send(server.pay("k", "come-back")).await;
        first.is_new(409);
        assert_eq!(state(&server).await, RecordState::Free);
        send(server.pay("k", "201")).await.is_new(201);
        assert_eq!(server.shop.runs(), 2);
    }

    async fn the_body_decides_too() {
        for (status, body, expected) in [
            ("201", "charged", RecordState::Done),
            ("502", "charged", RecordState::Unknown),
            ("502", "not charged", RecordState::Free),
            ("201", "later", RecordState::Free),
            ("500", "charged", RecordState::Free),
            ("201", "secret", RecordState::Done),
            ("500", "secret", RecordState::Done),
        ] {
            let server = Server::new(by_the_body).await;
            let first = send(server.pay("k", status).body(body)).await;
            first.is_new(status.parse().unwrap());
            assert_eq!(state(&server).await, expected, "{status} {body}");
            let retry = send(server.pay("k", "201").body(body)).await;
            match (expected, body) {
                (RecordState::Done, "secret") => drop(retry.is_problem(410, "response-not-kept")),
                (RecordState::Done, _) => drop(retry.is_replay_of(&first)),
                (RecordState::Unknown, _) => drop(retry.is_problem(409, "unknown")),
                _ => assert!(retry.is_new(201).text().starts_with("run 2"), "{status} {body}"),
            }
        }
    }

    async fn the_head_decides_if_the_body_does_not_come_wholly() {
        let server = Server::new(|layer| by_the_body(layer.max_response(20))).await;
        let first = send(server.pay("k", "201").body("later, and not charged")).await;
        first.is_new(201);
        let retry = send(server.pay("k", "201").body("later, and not charged")).await;
        retry.is_problem(410, "response-not-kept");
        assert_eq!(server.shop.runs(), 1);
    }

    /// The body is cut off, or panics.
    async fn the_head_decides_if_the_handler_does_not_come_to_the_end_of_the_body() {
        for means in [ServerError::Transient, ServerError::Unknown, ServerError::Keep] {
            for (by_the_head, expected) in [
                (Finality::Unknown, RecordState::Unknown),
                (Finality::NothingHappened, RecordState::Free),
                (Finality::DoNotKeep, RecordState::Done),
            ] {
                for act in ["stream 2x10", "panic-in-body"] {
                    let server = Server::new(|layer| {
                        let layer = layer.server_error(means).max_run(Duration::from_secs(1));
                        layer.finality(move |_, body| body.map_or(by_the_head, |_| Finality::Keep))
                    });
                    let server = server.await;
                    assert!(send(server.pay("k", act)).await.status >= 500);
                    assert_eq!(state(&server).await, expected, "{act} {means:?} {by_the_head:?}");
                }
            }
        }
    }

    async fn what_was_found_out_of_an_unknown_response_counts() {
        for happened in [true, false] {
            let server = Server::new(by_the_body).await;
            send(server.pay("k", "502")).await.is_new(502);
            let records = server.rowlock.idempotency();
            let resolution = if happened {
                Resolution::Happened(Outcome::json(&"ch_1").unwrap())
            } else {
                Resolution::NotHappened
            };
            let seen = records.inspect(Scope(scope("ann")).key("k")).await.unwrap().unwrap();
            records.resolve(&seen, resolution).await.unwrap();
            let retry = send(server.pay("k", "201")).await;
            if happened {
                assert_eq!((retry.status, retry.text(), retry.is_replay()), (200, "\"ch_1\"", true));
            } else {
                assert!(retry.is_new(201).text().starts_with("run 2"));
            }
            send(server.pay("k", "201")).await.is_replay_of(&crate::server::Answer {
                headers: axum::http::HeaderMap::default(),
                ..retry
            });
        }
    }

    async fn a_record_becomes_unknown_also_if_the_database_was_away() {
        let server = Server::new(by_the_body).await;
        let running = tokio::spawn(send(server.pay("k", "wait 502")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        let blocked = server.db.begin().await;
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_new(502);
        blocked.release().await;
        eventually("it is unknown", || async { state(&server).await == RecordState::Unknown }).await;
        send(server.pay("k", "201")).await.is_problem(409, "unknown");
        assert_eq!(server.shop.runs(), 1);
    }

    async fn server_errors_are_kept_where_that_is_set() {
        let keep = |layer: IdempotencyLayer| layer.server_error(ServerError::Keep);
        for status in ["500", "503", "panic"] {
            let server = Server::new(keep).await;
            let first = send(server.pay("k", status)).await;
            assert!(first.status >= 500);
            send(server.pay("k", "201")).await.is_replay_of(&first);
            assert_eq!(server.shop.runs(), 1, "{status}");
        }
        for status in ["408", "425", "429", "401"] {
            let server = Server::new(keep).await;
            send(server.pay("k", status)).await.is_new(status.parse().unwrap());
            send(server.pay("k", "201")).await.is_new(201);
        }
        let server = Server::new(|layer| keep(layer.max_run(Duration::from_secs(2)))).await;
        send(server.pay("k", "wait")).await.is_problem(503, "run-too-long");
        send(server.pay("k", "201")).await.is_new(201);
    }

    async fn a_handler_that_did_nothing_frees_its_key_whatever_it_returns() {
        for means in [ServerError::Transient, ServerError::Unknown, ServerError::Keep] {
            for act in ["nothing 500", "nothing 201", "nothing panic", "nothing wait"] {
                let server = Server::new(|layer| {
                    layer.server_error(means).max_run(Duration::from_secs(2))
                });
                let server = server.await;
                assert!(!send(server.pay("k", act)).await.is_replay());
                assert_eq!(state(&server).await, RecordState::Free, "{act} {means:?}");
                send(server.pay("k", "201")).await.is_new(201);
            }
        }
    }

    async fn grpc_is_refused_where_it_has_a_key_or_should_have_one() {
        for (required, kind) in [
            (true, "application/grpc"),
            (false, "application/GRPC+proto"),
            (true, "application/grpc-web"),
        ] {
            let server = Server::new(|layer| layer.required(required)).await;
            let request = server.pay("k", "201").header("content-type", kind);
            send(request).await.is_problem(415, "grpc");
            let without = send(server.keyless("201").header("content-type", kind)).await;
            if required {
                without.is_problem(415, "grpc");
            } else {
                without.is_new(201);
            }
            assert!(server.record("k").await.is_none());
        }
    }

    /// The corrected request differs in what does not count: in a header, or in the connection.
    async fn a_refusal_of_the_form_of_a_request_frees_its_key() {
        for means in [ServerError::Transient, ServerError::Unknown, ServerError::Keep] {
            let server = Server::new(|layer| layer.server_error(means)).await;
            let is_strict = means == ServerError::Unknown;
            for status in [401, 405, 407, 411, 413, 414, 415, 417, 421, 426, 428, 431] {
                let pay = |act: &str| server.pay(&status.to_string(), act);
                let first = send(pay(&status.to_string())).await;
                first.is_new(status);
                if is_strict && ![401, 405, 407].contains(&status) {
                    // The handler may have done some work before.
                    send(pay("201")).await.is_replay_of(&first);
                    continue;
                }
                let record = server.record(&status.to_string()).await.unwrap();
                assert_eq!(record.state, RecordState::Free, "{means:?} {status}");
                send(pay("201")).await.is_new(201);
            }
            // These speak of the content, or of the state of the data.
            for status in [400, 402, 403, 404, 406, 409, 410, 412, 416, 418, 422, 423, 424, 451] {
                let pay = |act: &str| server.pay(&status.to_string(), act);
                let first = send(pay(&status.to_string())).await;
                first.is_new(status);
                send(pay("201")).await.is_replay_of(&first);
            }
        }
    }
}
