//! Server errors, panics, processes that vanish, and a database that does.

use std::time::Duration;

use rowlock::{Outcome, RecordState, Resolution, Scope};
use rowlock_http::{Finality, IdempotencyLayer, ServerError, scope};
use rowlock_test::eventually;

use crate::server::{Server, over_a_socket, send};

async fn unknown() -> Server {
    Server::new(|layer| layer.server_error(ServerError::Unknown)).await
}

async fn state(server: &Server) -> RecordState {
    server.record("k").await.expect("a record").state
}

over_a_socket! {
    async fn what_may_pass_frees_the_key() {
        let server = Server::plain().await;
        for (run, status) in [500, 502, 503, 599, 408, 425, 429].into_iter().enumerate() {
            let answer = send(server.pay("k", &status.to_string())).await;
            let run = (run + 1).to_string();
            assert_eq!(answer.is_new(status).header("x-run"), Some(&*run));
            assert_eq!(state(&server).await, RecordState::Free);
        }
        let done = send(server.pay("k", "201")).await;
        done.is_new(201);
        send(server.pay("k", "500")).await.is_replay_of(&done);
        assert_eq!(server.shop.runs(), 8);
    }

    async fn what_is_final_can_be_set() {
        let server = Server::new(|layer| layer.finality(|head, _| match head.status.as_u16() {
            404 => Finality::Retry,
            _ => Finality::Keep,
        })).await;
        send(server.pay("k", "404")).await.is_new(404);
        let first = send(server.pay("k", "500")).await;
        first.is_new(500);
        send(server.pay("k", "201")).await.is_replay_of(&first);
    }

    async fn a_panic_frees_the_key() {
        let server = Server::plain().await;
        send(server.pay("k", "panic")).await.is_problem(500, "handler-panicked");
        assert_eq!(state(&server).await, RecordState::Free);
        send(server.pay("k", "201")).await.is_new(201);
    }

    async fn a_handler_whose_work_is_done_keeps_its_key_whatever_it_returns() {
        for act in ["kept-claimed", "kept-claimed panic"] {
            let server = Server::plain().await;
            assert_eq!(send(server.pay("k", act)).await.status, 500);
            assert_eq!(state(&server).await, RecordState::Running);
            send(server.pay("k", "201")).await.is_problem(409, "in-flight");
            assert_eq!(server.shop.runs(), 1);
        }
    }

    async fn a_final_response_does_not_hide_an_open_step() {
        let server = Server::plain().await;
        send(server.pay("k", "open-step")).await.is_problem(409, "unknown");
        assert_eq!(state(&server).await, RecordState::Unknown);
        send(server.pay("k", "201")).await.is_problem(409, "unknown");
    }

    async fn a_step_that_is_called_as_the_layers_is_the_handlers_own() {
        let server = Server::plain().await;
        // A status that says that nothing was done, where the handler is a step of the layer's.
        let first = send(server.pay("k", "open-step 401 handler")).await;
        assert_eq!(first.status, 401);
        assert_eq!(state(&server).await, RecordState::Unknown);
    }

    async fn failures_do_not_poison() {
        let server = Server::with(|records| records.max_attempts(1), |layer| layer).await;
        for act in ["panic", "500", "rollback", "rollback panic", "rollback 200"] {
            for _ in 0..2 {
                let answer = send(server.pay("k", act)).await;
                assert!(!answer.text().contains("poisoned"), "{act}: {answer:?}");
            }
        }
        assert_eq!(server.shop.runs(), 10);
        send(server.pay("k", "201")).await.is_new(201);
    }

    async fn unknown_is_what_a_server_error_makes_of_the_record() {
        for act in ["500", "panic", "429"] {
            let server = unknown().await;
            let first = send(server.pay("k", act)).await;
            assert!(first.status == 500 || first.status == 429, "{first:?}");
            for _ in 0..2 {
                let problem = send(server.pay("k", "201")).await.is_problem(409, "unknown");
                assert!(problem["detail"].as_str().unwrap().contains("handler"), "{problem}");
            }
            assert_eq!((state(&server).await, server.shop.runs()), (RecordState::Unknown, 1));
        }
    }

    async fn unknown_is_a_record_whose_handler_was_abandoned() {
        let server = unknown().await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        server.lapse().await;
        send(server.pay("k", "201")).await.is_problem(409, "unknown");
        server.shop.gate.add_permits(1);
        // It was not dead, and has lost its right to say so.
        running.await.unwrap().is_problem(409, "in-flight");
        assert_eq!((state(&server).await, server.shop.runs()), (RecordState::Unknown, 1));
    }

    async fn unknown_and_found_to_have_happened_is_replayed() {
        let server = unknown().await;
        send(server.pay("k", "500")).await.is_new(500);
        let found = Outcome::json(&serde_json::json!({ "paid": 100 })).unwrap();
        let idempotency = server.rowlock.idempotency();
        let seen = idempotency.inspect(Scope(scope("ann")).key("k")).await.unwrap().unwrap();
        idempotency.resolve(&seen, Resolution::Happened(found)).await.unwrap();
        for _ in 0..2 {
            let answer = send(server.pay("k", "201")).await;
            assert_eq!((answer.status, answer.text()), (200, r#"{"paid":100}"#));
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert!(answer.is_replay());
            assert_eq!(state(&server).await, RecordState::Done);
        }
        assert_eq!(server.shop.runs(), 1);
    }

    async fn what_was_found_and_cannot_be_kept_poisons_nothing() {
        let records = |records: rowlock::Idempotency| records.max_attempts(1).max_outcome(1_000);
        let server = Server::with(records, |layer| layer.server_error(ServerError::Unknown)).await;
        send(server.pay("k", "500")).await.is_new(500);
        // A client with other settings does it.
        let found = Outcome::new("text/plain", vec![b'x'; 1_001]).unwrap();
        let idempotency = server.rowlock.idempotency();
        let seen = idempotency.inspect(Scope(scope("ann")).key("k")).await.unwrap().unwrap();
        idempotency.resolve(&seen, Resolution::Happened(found)).await.unwrap();
        for _ in 0..3 {
            send(server.pay("k", "201")).await.is_problem(500, "misconfigured");
            server.rowlock.flush().await;
            assert_eq!(state(&server).await, RecordState::Free);
        }
    }

    async fn unknown_and_found_not_to_have_happened_runs_again() {
        let server = unknown().await;
        send(server.pay("k", "panic")).await.is_problem(500, "handler-panicked");
        let idempotency = server.rowlock.idempotency();
        let seen = idempotency.inspect(Scope(scope("ann")).key("k")).await.unwrap().unwrap();
        idempotency.resolve(&seen, Resolution::NotHappened).await.unwrap();
        let second = send(server.pay("k", "201")).await;
        second.is_new(201);
        send(server.pay("k", "201")).await.is_replay_of(&second);
        assert_eq!(server.shop.runs(), 2);
    }

    async fn who_was_taken_over_does_not_answer() {
        let server = Server::plain().await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        server.lapse().await;
        let second = send(server.pay("k", "201")).await;
        assert_eq!(second.is_new(201).header("x-run"), Some("2"));
        server.shop.gate.add_permits(1);
        let first = running.await.unwrap();
        first.is_problem(409, "in-flight");
        assert_eq!(first.retry_after(), 1);
        send(server.pay("k", "201")).await.is_replay_of(&second);
    }

    async fn a_key_that_is_too_old_is_gone() {
        let server = Server::plain().await;
        send(server.pay("k", "201")).await.is_new(201);
        let sql = "UPDATE rowlock_idempotency SET retain_until = 1";
        assert_eq!(server.db.execute(sql).await, 1);
        send(server.pay("k", "201")).await.is_problem(410, "expired");
        assert_eq!(server.shop.runs(), 1);
    }

    async fn a_poisoned_key_is_a_conflict() {
        let server = Server::with(|records| records.max_attempts(1), |layer| layer).await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        server.lapse().await;
        send(server.pay("k", "201")).await.is_problem(409, "poisoned");
        assert_eq!(server.shop.runs(), 1);
        server.shop.gate.add_permits(1);
        running.await.unwrap();
    }

    async fn a_damaged_record_is_500() {
        let server = Server::plain().await;
        send(server.pay("k", "201")).await.is_new(201);
        server.db.damage_record("UPDATE rowlock_idempotency SET state = 'gone'").await;
        send(server.pay("k", "201")).await.is_problem(500, "damaged");
        let server = Server::plain().await;
        send(server.pay("k", "201")).await.is_new(201);
        let sql = "UPDATE rowlock_idempotency SET outcome = CAST('no HTTP' AS BLOB)";
        assert_eq!(server.db.execute(sql).await, 1);
        send(server.pay("k", "201")).await.is_problem(500, "damaged");
        assert_eq!(server.shop.runs(), 1);
    }

    async fn settings_that_make_no_sense_are_500() {
        let settings: [fn(IdempotencyLayer) -> IdempotencyLayer; 5] = [
            |layer| layer.max_key(0),
            |layer| layer.max_key(256),
            |layer| layer.max_response(2 << 20),
            |layer| layer.keep_headers(["no name"]),
            |layer| layer.policy_url(""),
        ];
        for set in settings {
            let server = Server::new(|layer| {
                layer.check().unwrap();
                let layer = set(layer);
                layer.check().unwrap_err();
                layer
            })
            .await;
            let answer = send(server.pay("k", "201")).await;
            assert_eq!(answer.status, 500);
            assert!(answer.text().contains("#misconfigured"), "{answer:?}");
            assert_eq!(server.shop.runs(), 0);
        }
    }

    async fn a_principal_that_is_too_long_is_500() {
        let server = Server::plain().await;
        let request = server.request("POST", "/pay").header("idempotency-key", "\"k\"");
        let longest = request.try_clone().unwrap().header("x-user", "u".repeat(250));
        send(longest).await.is_new(201);
        let answer = send(request.header("x-user", "u".repeat(251))).await;
        answer.is_problem(500, "misconfigured");
    }

    async fn a_database_out_of_reach_is_503() {
        let server = Server::plain().await;
        server.break_table().await;
        let answer = send(server.pay("k", "201")).await;
        answer.is_problem(503, "unavailable");
        assert_eq!((answer.retry_after(), server.shop.runs()), (5, 0));
        server.mend_table().await;
        send(server.pay("k", "201")).await.is_new(201);
    }

    async fn a_database_in_quarantine_is_503() {
        let server = Server::plain().await;
        let operator = server.db.rowlock().await;
        operator.admin().quarantine(Duration::from_mins(1)).await.unwrap();
        let answer = send(server.pay("k", "201")).await;
        answer.is_problem(503, "unavailable");
        assert_eq!((answer.retry_after(), server.shop.runs()), (5, 0));
        operator.admin().end_quarantine().await.unwrap();
        send(server.pay("k", "201")).await.is_new(201);
    }

    async fn a_response_is_kept_when_the_database_is_back() {
        let server = Server::plain().await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        // The handler has had its effect by then.
        eventually("the effect", || async { server.effects().await == 1 }).await;
        let blocked = server.db.begin().await;
        server.shop.gate.add_permits(1);
        let answer = running.await.unwrap();
        answer.is_problem(503, "unavailable");
        blocked.release().await;
        let done = || async { state(&server).await == RecordState::Done };
        eventually("the response is kept", done).await;
        let second = send(server.pay("k", "201")).await;
        assert_eq!((second.status, second.is_replay()), (201, true));
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn a_response_is_kept_also_when_the_lease_has_run_out_meanwhile() {
        let lease = Duration::from_millis(200);
        let server = Server::with(|records| records.lease(lease), |layer| layer).await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        let blocked = server.db.begin().await;
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_problem(503, "unavailable");
        let lapsed = || async { state(&server).await == RecordState::Lapsed };
        eventually("the lease has run out", lapsed).await;
        blocked.release().await;
        let done = || async { state(&server).await == RecordState::Done };
        eventually("the response is kept", done).await;
        let second = send(server.pay("k", "201")).await;
        assert_eq!((second.status, second.is_replay()), (201, true));
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn a_handler_that_could_not_be_begun_is_no_attempt_that_was_abandoned() {
        let server = unknown().await;
        // As many as attempts may be abandoned.
        for _ in 0..5 {
            server.db.execute("ALTER TABLE rowlock_idempotency_step RENAME TO gone").await;
            let status = send(server.pay("k", "201")).await.status;
            assert!(status == 500 || status == 503, "{status}");
            server.db.execute("ALTER TABLE gone RENAME TO rowlock_idempotency_step").await;
            server.rowlock.flush().await;
        }
        send(server.pay("k", "201")).await.is_new(201);
        assert_eq!(server.shop.runs(), 1);
    }

    async fn a_body_that_panics_does_not_free_a_key_whose_work_is_done() {
        let server = Server::plain().await;
        send(server.pay("k", "panic-in-body")).await.is_problem(500, "handler-panicked");
        let problem = send(server.pay("k", "201")).await.is_problem(410, "response-not-kept");
        assert_eq!(problem["original_status"], 201);
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn a_response_that_the_database_refuses_is_not_run_again() {
        let lease = Duration::from_secs(2);
        let server = Server::with(|records| records.lease(lease), |layer| layer).await;
        let refuse = "CREATE TRIGGER refuse BEFORE UPDATE OF outcome ON rowlock_idempotency \
                      WHEN NEW.content_type = 'message/http' BEGIN SELECT RAISE(ABORT, 'refused'); END";
        server.db.execute(refuse).await;
        send(server.pay("k", "201")).await.is_problem(503, "unavailable");
        let done = || async { state(&server).await == RecordState::Done };
        eventually("that it was done is kept", done).await;
        let problem = send(server.pay("k", "201")).await.is_problem(410, "response-not-kept");
        assert_eq!(problem["original_status"], 201);
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn the_lease_is_renewed_while_the_handler_runs() {
        let lease = Duration::from_secs(2);
        let server = Server::with(|records| records.lease(lease), |layer| layer).await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        let until = async || {
            server.db.number("SELECT lease_until FROM rowlock_idempotency").await
        };
        let first = until().await;
        eventually("a renewal", || async { until().await > first }).await;
        send(server.pay("k", "201")).await.is_problem(409, "in-flight");
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_new(201);
        assert_eq!(server.shop.runs(), 1);
    }
}
