//! What a server that stops has to wait for.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use rowlock::RecordState;
use rowlock_http::IdempotencyLayer;
use rowlock_test::{eventually, take};

use crate::server::{Server, over_a_socket, send};

async fn server() -> (Server, IdempotencyLayer) {
    let kept = OnceLock::new();
    let server = Server::new(|layer| {
        kept.set(layer.clone()).unwrap();
        // With settings of its own.
        layer.max_body(100)
    });
    let server = server.await;
    (server, kept.into_inner().unwrap())
}

async fn is_idle(layer: &IdempotencyLayer) -> bool {
    let mut idle = pin!(layer.idle());
    poll_fn(|cx| Poll::Ready(idle.as_mut().poll(cx).is_ready())).await
}

over_a_socket! {
    async fn a_handler_whose_client_has_hung_up_is_waited_for() {
        let (mut server, layer) = server().await;
        assert!(is_idle(&layer).await, "before the first request");
        let hangs_up = tokio::spawn(send(server.pay("k", "wait")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        hangs_up.abort();
        // No connection is left.
        server.stop().await;
        assert!(!is_idle(&layer).await, "the handler runs");
        server.shop.gate.add_permits(1);
        layer.idle().await;
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Done);
    }

    async fn a_response_that_is_not_kept_yet_is_waited_for() {
        let (server, layer) = server().await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        let blocked = server.db.begin().await;
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_problem(503, "unavailable");
        assert!(!is_idle(&layer).await, "it is tried again");
        blocked.release().await;
        layer.idle().await;
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Done);
    }

    async fn a_handler_that_outlives_a_shutdown_still_records_its_response() {
        let (server, _layer) = server().await;
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
        let (server, _layer) = server().await;
        // Its lanes are there yet.
        let held = take(&server.rowlock, "a", Duration::from_mins(1)).await;
        assert_eq!(server.rowlock.shutdown(Duration::ZERO).await.len(), 1);
        send(server.pay("k", "201")).await.is_problem(503, "stopping");
        assert_eq!(server.shop.runs(), 0);
        drop(held);
    }

    async fn whatever_comes_of_a_request_nothing_is_under_way_after_it() {
        let (server, layer) = server().await;
        for act in ["201", "500", "panic", "panic-in-body"] {
            let _ = send(server.pay(act, act)).await;
            layer.idle().await;
        }
        send(server.keyless("201")).await.is_problem(400, "missing-key");
        layer.idle().await;
    }
}
