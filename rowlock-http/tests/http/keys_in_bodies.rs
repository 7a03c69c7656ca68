//! Keys that a hook finds in the whole request: webhooks have them in their bodies.

use crate::server::{Server, over_a_socket, send};

over_a_socket! {
    async fn an_event_that_is_delivered_again_is_a_replay() {
        let server = Server::new(|layer| layer.key_in_json("$.event.id")).await;
        let deliver = async |body: &'static str| send(server.keyless("201").body(body)).await;
        for body in [r#"{"event":{"id":"evt_1"}}"#, r#"{"event":{"id":17}}"#, r#"{"event":{"id":-17}}"#] {
            let first = deliver(body).await;
            first.is_new(201);
            assert!(first.text().ends_with(body), "the handler gets the whole body: {first:?}");
            deliver(body).await.is_replay_of(&first);
        }
        deliver(r#"{"event":{"id":"17"}}"#).await.is_problem(422, "key-reused");
        assert!(server.record("evt_1").await.is_some());
        assert_eq!(server.shop.runs(), 3);
    }

    async fn a_body_without_a_valid_key_is_refused() {
        let server = Server::new(|layer| layer.key_in_json("$.id").max_key(10)).await;
        for (body, problem, said) in [
            ("", "bad-key", "not JSON"),
            (r#"{"id":"""#, "bad-key", "not JSON"),
            (r#"{"id":""}"#, "bad-key", "empty"),
            (r#"{"id":"undefined"}"#, "bad-key", "missing value"),
            (r#"{"id":1.5}"#, "bad-key", "a text or a whole number"),
            (r#"{"id":"a","id":"b"}"#, "bad-key", "ambiguous"),
            (r#"{"id":["a"]}"#, "bad-key", "a text or a whole number"),
            (r#"{"id":"12345678901"}"#, "bad-key", "more than 10"),
            (r#"{"id":null}"#, "missing-key", "Idempotency-Key"),
            ("{}", "missing-key", "Idempotency-Key"),
        ] {
            let answer = send(server.keyless("201").header("idempotency-key", "\"k\"").body(body)).await;
            answer.is_problem(400, problem);
            assert!(answer.text().contains(said), "{answer:?}");
        }
        assert_eq!(server.shop.runs(), 0);
    }

    /// Another parser may find a key where this one finds none.
    async fn a_field_that_stands_twice_is_not_taken_for_a_missing_key() {
        let server = Server::new(|layer| layer.key_in_json("$.a.b.id").required(false)).await;
        for (body, status) in [
            (r#"{"a":{"b":{"id":"k","id":"l"}}}"#, 400),
            (r#"{"a":{"b":{"id":"k","id":null}}}"#, 400),
            (r#"{"a":{"b":{"id":"k"},"b":{}}}"#, 400),
            (r#"{"a":{"b":{"id":"k"}},"a":{}}"#, 400),
            (r#"{"c":[{"a":1,"a":2}]}"#, 400),
            (r#"{"a":{"b":{"c":1}},"b":{"c":[1,{"id":"k"}]}}"#, 201),
            ("{}", 201),
            ("[]", 201),
        ] {
            let answer = send(server.keyless("201").body(body)).await;
            assert_eq!(answer.status, status, "{body}: {answer:?}");
        }
        assert_eq!(server.shop.runs(), 3);
    }

    async fn several_keys_in_one_body_are_refused() {
        let server = Server::new(|layer| layer.key_in_json("$..id")).await;
        for body in [r#"{"id":"a","b":{"id":"c"}}"#, r#"{"id":null,"b":{"id":"c"}}"#, r#"{"id":"a","b":{"id":null}}"#] {
            let answer = send(server.keyless("201").body(body)).await;
            answer.is_problem(400, "bad-key");
            assert!(answer.text().contains("one value"), "{answer:?}");
        }
    }

    async fn without_a_key_that_is_not_required_the_whole_request_passes() {
        let server = Server::new(|layer| layer.key_in_json("$.id").required(false)).await;
        for _ in 0..2 {
            let answer = send(server.keyless("201").body(r#"{"a":1}"#)).await;
            answer.is_new(201);
            assert!(answer.text().ends_with(r#"{"a":1}"#) && answer.header("x-has-attempt") == Some("0"), "{answer:?}");
        }
        assert_eq!(server.shop.runs(), 2);
    }

    async fn a_hook_may_wait_and_its_reason_is_shortened() {
        let server = Server::new(|layer| {
            layer.key_from(|request| async move {
                tokio::task::yield_now().await;
                let name = request.head().headers.get("x-delivery");
                let name = name.ok_or_else(|| "No. ".repeat(1_000))?;
                Ok::<_, String>(Some(format!("{}:{}", request.head().method, name.to_str().unwrap())))
            })
        });
        let server = server.await;
        let refused = send(server.keyless("201")).await;
        refused.is_problem(400, "bad-key");
        assert_eq!(refused.text().matches("No. ").count(), 75);
        let first = send(server.keyless("201").header("x-delivery", "d1")).await;
        first.is_new(201);
        send(server.keyless("500").header("x-delivery", "d1")).await.is_replay_of(&first);
        assert!(server.record("POST:d1").await.is_some());
    }

    /// A sender stops to send to an endpoint that says 410.
    async fn an_event_that_was_done_is_a_success_also_when_its_response_is_gone() {
        let server = Server::new(|layer| layer.key_in_json("$.id").max_response(1_000)).await;
        let deliver = async |id: &str, act: &str| {
            send(server.keyless(act).body(format!(r#"{{"id":"{id}"}}"#))).await
        };
        deliver("evt_1", "201").await.is_new(201);
        let refused = deliver("evt_3", "422").await;
        refused.is_new(422);
        deliver("evt_3", "422").await.is_replay_of(&refused);
        let sql = "UPDATE rowlock_idempotency SET retain_until = 1";
        assert_eq!(server.db.execute(sql).await, 2);
        deliver("evt_2", "large 1001").await.is_new(200);
        // After the retention nothing tells a refusal from a success.
        for id in ["evt_1", "evt_2", "evt_3"] {
            for _ in 0..2 {
                let again = deliver(id, "201").await;
                assert!(again.is_replay() && again.body.is_empty(), "{again:?}");
                assert_eq!(again.status, 200);
            }
        }
        // A refusal stays one.
        let sql = "UPDATE rowlock_idempotency SET outcome = CAST('402' AS BLOB) WHERE content_type LIKE '%not-kept'";
        assert_eq!(server.db.execute(sql).await, 1);
        assert_eq!(deliver("evt_2", "201").await.status, 402);
        assert_eq!(server.shop.runs(), 3);
    }

    async fn a_key_that_is_too_long_is_told_in_bytes() {
        let server = Server::new(|layer| layer.key_in_json("$.id")).await;
        let body = format!(r#"{{"id":"{}"}}"#, "\u{e9}".repeat(128));
        let answer = send(server.keyless("201").body(body)).await;
        answer.is_problem(400, "bad-key");
        assert!(answer.text().contains("more than 255 bytes"), "{answer:?}");
    }
}
