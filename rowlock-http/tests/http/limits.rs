//! How long handlers may run, and how many of them.

use std::time::Duration;

use rowlock::RecordState;
use rowlock_http::{IdempotencyLayer, ServerError};
use rowlock_test::eventually;

use crate::server::{Server, over_a_socket, send};

const SHORT: Duration = Duration::from_secs(2);

async fn short(set: impl FnOnce(IdempotencyLayer) -> IdempotencyLayer) -> Server {
    Server::new(|layer| set(layer.max_run(SHORT))).await
}

over_a_socket! {
    async fn a_handler_that_runs_too_long_is_dropped_and_frees_its_key() {
        let server = short(|layer| layer).await;
        let late = send(server.pay("k", "wait")).await;
        late.is_problem(503, "run-too-long");
        assert!(late.retry_after() > 0 && late.text().contains("2s"), "{late:?}");
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Free);
        let second = send(server.pay("k", "201")).await;
        assert_eq!(second.is_new(201).text(), "run 2: POST /pay 100");
        // It does not go on.
        server.shop.gate.add_permits(1);
        send(server.pay("k", "201")).await.is_replay_of(&second);
        assert_eq!(server.shop.gate.available_permits(), 1);
    }

    async fn what_it_may_have_done_is_unknown_where_server_errors_are() {
        let server = short(|layer| layer.server_error(ServerError::Unknown)).await;
        send(server.pay("k", "wait")).await.is_problem(503, "run-too-long");
        send(server.pay("k", "201")).await.is_problem(409, "unknown");
        assert_eq!(server.shop.runs(), 1);
    }

    async fn a_step_that_must_not_be_repeated_is_unknown_when_its_handler_is_dropped() {
        let server = short(|layer| layer).await;
        send(server.pay("k", "wait-in-step")).await.is_problem(503, "run-too-long");
        send(server.pay("k", "201")).await.is_problem(409, "unknown");
    }

    async fn a_transaction_is_rolled_back_when_its_handler_is_dropped() {
        let server = short(|layer| layer).await;
        send(server.pay("k", "wait-in-tx")).await.is_problem(503, "run-too-long");
        eventually("the key is free", || async {
            server.record("k").await.unwrap().state == RecordState::Free
        })
        .await;
        assert_eq!(server.effects().await, 0);
        send(server.pay("k", "commit")).await.is_new(201);
        assert_eq!(server.effects().await, 1);
    }

    /// The work is done.
    async fn a_final_response_whose_body_takes_too_long_is_not_repeated() {
        let server = short(|layer| layer).await;
        send(server.pay("k", "stream 3x10")).await.is_problem(503, "run-too-long");
        let retry = send(server.pay("k", "201")).await;
        assert_eq!(retry.is_problem(410, "response-not-kept")["original_status"], 200);
        assert_eq!(server.shop.runs(), 1);
    }

    async fn a_request_beyond_the_room_is_refused_and_its_key_stays_free() {
        let server = Server::new(|layer| layer.max_running(2)).await;
        let done = send(server.pay("done", "201")).await;
        let running: Vec<_> = ["a", "b"]
            .map(|key| tokio::spawn(send(server.pay(key, "wait"))))
            .into();
        eventually("both run", || async { server.shop.runs() == 3 }).await;
        let refused = send(server.pay("c", "201")).await;
        refused.is_problem(503, "overloaded");
        assert!(refused.retry_after() > 0);
        assert!(server.record("c").await.is_none());
        send(server.pay("done", "201")).await.is_replay_of(&done);
        send(server.pay("a", "wait")).await.is_problem(409, "in-flight");
        send(server.pay("done", "201").body("101")).await.is_problem(422, "key-reused");
        server.shop.gate.add_permits(2);
        for answer in running {
            answer.await.unwrap().is_new(201);
        }
        send(server.pay("c", "201")).await.is_new(201);
    }

    /// A panic and a refusal give their room back, too.
    async fn every_end_of_a_handler_makes_room() {
        let server = Server::new(|layer| layer.max_running(1).max_run(SHORT)).await;
        for act in ["500", "panic", "wait", "panic-in-body", "commit", "rollback", "large 2000000"] {
            let answer = send(server.pay(act, act)).await;
            assert!(!answer.text().contains("overloaded"), "{act}: {answer:?}");
        }
        assert_eq!(server.shop.runs(), 7);
    }

    async fn a_duplicate_that_waits_takes_no_room() {
        let server = Server::with(
            |idempotency| idempotency.wait(Duration::from_mins(1)),
            |layer| layer.max_running(2),
        );
        let server = server.await;
        let first = tokio::spawn(send(server.pay("a", "wait")));
        eventually("it runs", || async { server.shop.has_begun("a") }).await;
        let twice: Vec<_> = (0..5).map(|_| tokio::spawn(send(server.pay("a", "wait")))).collect();
        send(server.pay("b", "201")).await.is_new(201);
        server.shop.gate.add_permits(1);
        let first = first.await.unwrap();
        for answer in twice {
            answer.await.unwrap().is_replay_of(&first);
        }
    }

    async fn wrong_limits_are_told_at_the_start() {
        let server = Server::new(|layer| {
            for (wrong, setting) in [
                (layer.clone().max_run(Duration::ZERO), "max_run"),
                (layer.clone().max_run(Duration::from_hours(25)), "max_run"),
                (layer.clone().max_running(0), "max_running"),
                (layer.clone().max_running(usize::MAX), "max_running"),
            ] {
                let error = wrong.check().unwrap_err().to_string();
                assert!(error.contains(setting), "{error}");
            }
            layer.max_running(0)
        });
        send(server.await.pay("k", "201")).await.is_problem(500, "misconfigured");
    }
}
