//! The end of a server: what it waits for, what it cuts off, and what it says of it.

use std::time::Duration;

use rowlock::RecordState;
use rowlock_http::{Doing, IdempotencyLayer, Left, ServerError};
use rowlock_test::{eventually, patience, take};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::raw;
use crate::server::{Server, over_a_socket, send};

const LONG: Duration = Duration::from_mins(1);

/// A server whose layer has settings of its own, and the layer without them.
async fn server(
    set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer,
) -> (Server, IdempotencyLayer) {
    Server::and_layer(|layer| set(layer.max_body(100))).await
}

over_a_socket! {
    async fn a_response_that_is_not_kept_yet_is_waited_for() {
        let (server, layer) = server(|layer| layer).await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        let blocked = server.db.begin().await;
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_problem(503, "unavailable");
        let left = layer.drain(Duration::from_millis(200)).await;
        let said: Vec<_> = left.iter().map(ToString::to_string).collect();
        assert!(left.len() == 1 && left[0].doing == Doing::Keeping, "{said:?}");
        assert!(said[0].contains("\"k\" of \"http:ann\" is not kept yet"), "{said:?}");
        blocked.release().await;
        assert_eq!(layer.drain(LONG).await, []);
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Done);
    }

    async fn an_attempt_that_has_not_ended_is_not_called_done() {
        let (server, layer) = server(|layer| layer).await;
        let running = tokio::spawn(send(server.pay("k", "wait 500")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        let blocked = server.db.begin().await;
        server.shop.gate.add_permits(1);
        // The database may take longer to answer than this.
        let left = layer.drain(Duration::from_millis(900)).await;
        let said: Vec<_> = left.iter().map(ToString::to_string).collect();
        assert!(left.len() == 1 && left[0].doing == Doing::GivingUp && !left[0].was_cut, "{said:?}");
        assert!(said[0].contains("\"k\" of \"http:ann\" has not ended yet: its work is not known to be done"), "{said:?}");
        blocked.release().await;
        running.await.unwrap().is_new(500);
        assert_eq!(layer.drain(LONG).await, []);
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Free);
    }

    async fn a_handler_that_is_cut_off_is_named_once_with_what_its_attempt_does() {
        let (server, layer) = server(|layer| layer).await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        let blocked = server.db.begin().await;
        // It is cut off after nine tenths of this time, and its key cannot be freed in the last one.
        let left = layer.drain(Duration::from_secs(5)).await;
        assert!(matches!(&left[..], [left] if left.doing == Doing::GivingUp && left.was_cut), "{left:?}");
        blocked.release().await;
        running.await.unwrap().is_problem(503, "stopping");
        let left = layer.drain(LONG).await;
        assert!(matches!(&left[..], [left] if left.doing == Doing::Running && left.was_cut), "{left:?}");
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Free);
    }

    async fn a_request_that_turned_out_to_have_no_key_is_not_waited_for() {
        let (server, layer) = server(|layer| layer.key_in_json("$.id").required(false)).await;
        let running = tokio::spawn(send(server.keyless("wait").body("{}")));
        eventually("it runs", || async { server.effects().await == 1 }).await;
        assert_eq!(layer.drain(LONG).await, []);
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_new(201);
    }

    async fn no_request_begins_in_a_layer_that_drains() {
        let (server, layer) = server(|layer| layer).await;
        let first = send(server.pay("k", "201")).await;
        first.is_new(201);
        assert_eq!(layer.drain(LONG).await, []);
        for key in ["k", "other"] {
            let refused = send(server.pay(key, "201")).await;
            refused.is_problem(503, "stopping");
            assert!(refused.retry_after() > 0);
        }
        // It passes untouched.
        send(server.request("GET", "/pay").header("x-act", "200")).await.is_new(200);
        assert_eq!(server.shop.runs(), 2);
        assert!(server.record("other").await.is_none());
    }

    /// All are cut off at once, and each is told to its client.
    async fn handlers_that_do_not_end_are_cut_off_and_named() {
        for (means, expected) in [
            (ServerError::Transient, RecordState::Free),
            (ServerError::Unknown, RecordState::Unknown),
        ] {
            let (server, layer) = server(|layer| layer.server_error(means)).await;
            let keys: Vec<String> = (0..100).map(|key| format!("k{key:02}")).collect();
            let ask = |key: &String| tokio::spawn(send(server.pay(key, "wait")));
            let running: Vec<_> = keys.iter().map(ask).collect();
            let effects = async || {
                assert!(running.iter().all(|answer| !answer.is_finished()), "an answer without an effect");
                server.effects().await == 100
            };
            eventually("the effects", effects).await;
            let limit = Duration::from_secs(3);
            let left = tokio::time::timeout(patience(), layer.drain(limit)).await.expect("it ends");
            assert_eq!(left.len(), 100);
            // On a busy machine some of them are still giving up.
            let was_cut = |left: &Left| left.was_cut && matches!(left.doing, Doing::Running | Doing::GivingUp);
            assert!(left.iter().all(was_cut), "{left:?}");
            let mut named: Vec<_> = left.iter().map(|left| left.record.as_ref().unwrap().to_string()).collect();
            named.sort_unstable();
            let all = keys.iter().map(|key| format!("{key:?} of \"http:ann\""));
            assert!(named.into_iter().eq(all), "{left:?}");
            for answer in running {
                answer.await.unwrap().is_problem(503, "stopping");
            }
            for key in &keys {
                let state = server.record(key).await.unwrap().state;
                assert_eq!(state, expected);
            }
        }
    }

    async fn a_request_whose_body_does_not_come_leaves_nothing() {
        // No socket has room for it: all but the last byte are sent once the layer has read most of them.
        let body = vec![b'1'; 32 << 20];
        let (server, layer) = Server::and_layer(|layer| layer.max_body(body.len())).await;
        let request = String::from_utf8(raw::request(&[b"\"k\""])).unwrap();
        let length = format!("content-length: {}", body.len());
        let head = request.replace("content-length: 3", &length);
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all(head.strip_suffix("100").unwrap().as_bytes()).await.unwrap();
        client.write_all(&body[1..]).await.unwrap();
        let left = layer.drain(Duration::from_millis(200)).await;
        assert!(matches!(&left[..], [left] if left.doing == Doing::Beginning && left.record.is_none()), "{left:?}");
        client.write_all(&body[..1]).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("#stopping"), "{answer}");
        assert!(server.record("k").await.is_none());
    }

    async fn a_handler_that_outlives_a_shutdown_still_records_its_response() {
        let (server, _layer) = server(|layer| layer).await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        let unfinished = server.rowlock.shutdown(Duration::from_millis(100)).await;
        let names: Vec<_> = unfinished.iter().map(ToString::to_string).collect();
        assert!(names.contains(&"an HTTP handler".into()), "{names:?}");
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_new(201);
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Done);
        assert!(server.rowlock.shutdown(Duration::from_mins(1)).await.is_empty());
    }

    async fn a_request_that_comes_after_a_shutdown_runs_nothing() {
        let (server, _layer) = server(|layer| layer).await;
        // Its lanes are there yet.
        let held = take(&server.rowlock, "a", Duration::from_mins(1)).await;
        assert_eq!(server.rowlock.shutdown(Duration::ZERO).await.len(), 1);
        send(server.pay("k", "201")).await.is_problem(503, "stopping");
        assert_eq!(server.shop.runs(), 0);
        drop(held);
    }

    async fn whatever_comes_of_a_request_nothing_is_under_way_after_it() {
        for act in ["201", "500", "panic", "panic-in-body"] {
            let (server, layer) = server(|layer| layer).await;
            let _ = send(server.pay(act, act)).await;
            send(server.keyless("201")).await.is_problem(400, "missing-key");
            assert_eq!(layer.drain(LONG).await, [], "{act}");
        }
    }
}
