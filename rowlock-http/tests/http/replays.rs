//! What a retry gets.

use std::time::{Duration, Instant};

use axum::http::Method;
use rowlock_test::eventually;

use crate::server::{Answer, Server, over_a_socket, send};

/// An attempt that takes so long at least; how long it took.
async fn one_attempt(server: &Server, at_least: Duration) -> Duration {
    let started = Instant::now();
    let running = tokio::spawn(send(server.pay("slow", "wait")));
    eventually("it runs", || async { server.shop.has_begun("slow") }).await;
    tokio::time::sleep(at_least).await;
    server.shop.gate.add_permits(1);
    running.await.unwrap().is_new(201);
    started.elapsed()
}

/// What a duplicate is told of an attempt that is running.
async fn refused_while_one_runs(server: &Server) -> Answer {
    let key = format!("k{}", server.shop.runs());
    let running = tokio::spawn(send(server.pay(&key, "wait")));
    eventually("it runs", || async { server.shop.has_begun(&key) }).await;
    let refused = send(server.pay(&key, "201")).await;
    refused.is_problem(409, "in-flight");
    server.shop.gate.add_permits(1);
    running.await.unwrap().is_new(201);
    refused
}

over_a_socket! {
    async fn a_retry_gets_the_same_response() {
        let server = Server::plain().await;
        for act in ["201", "bytes"] {
            let first = send(server.pay(act, act)).await;
            let second = send(server.pay(act, act)).await;
            second.is_replay_of(&first);
            for name in ["content-type", "location", "link", "etag", "cache-control", "content-length"] {
                let all = |answer: &crate::server::Answer| {
                    answer.headers.get_all(name).iter().cloned().collect::<Vec<_>>()
                };
                assert_eq!(all(&second), all(&first), "{name}");
            }
            assert!(first.headers.contains_key("location"));
            let kept = |name| second.headers.contains_key(name);
            assert!(first.headers.contains_key("x-run") && !kept("x-run") && !kept("set-cookie"));
        }
        let odd = send(server.pay("bytes", "bytes")).await;
        assert_eq!((odd.status, odd.headers.get_all("link").iter().count()), (207, 2));
        assert_eq!(odd.headers["etag"].as_bytes(), b"\"\xff\x80\"");
        assert_eq!(odd.body, (0..=255).collect::<Vec<u8>>());
        assert_eq!((server.shop.runs(), server.effects().await), (2, 2));
    }

    async fn a_request_without_a_body_is_a_request() {
        let server = Server::plain().await;
        let first = send(server.pay("k", "201").body("")).await;
        assert_eq!(first.is_new(201).text(), "run 1: POST /pay ");
        send(server.pay("k", "201").body("")).await.is_replay_of(&first);
        send(server.pay("k", "201").body("0")).await.is_problem(422, "key-reused");
    }

    /// The draft leaves it to the client what one request is: a new key is a new request.
    async fn two_keys_with_one_body_are_two_requests() {
        let server = Server::plain().await;
        let [first, second] = ["a", "b"].map(|key| send(server.pay(key, "201")));
        assert_ne!(first.await.is_new(201).text(), second.await.is_new(201).text());
        assert_eq!(server.effects().await, 2);
    }

    async fn a_refusal_of_the_handler_is_replayed() {
        let server = Server::plain().await;
        for status in [200, 204, 302, 400, 402, 403, 404, 409, 422, 451, 499] {
            let act = status.to_string();
            let first = send(server.pay(&act, &act)).await;
            first.is_new(status);
            send(server.pay(&act, "201")).await.is_replay_of(&first);
        }
        assert_eq!(server.shop.runs(), 11);
    }

    async fn what_is_kept_is_an_http_message() {
        let server = Server::plain().await;
        send(server.pay("k", "201")).await.is_new(201);
        let outcome = server.outcome("k").await;
        assert_eq!(outcome.content_type(), "message/http");
        let kept = String::from_utf8_lossy(outcome.bytes());
        let (head, body) = kept.split_once("\r\n\r\n").unwrap();
        let mut head: Vec<_> = head.split("\r\n").collect();
        // Their order means nothing.
        head[1..].sort_unstable();
        let expected = ["HTTP/1.1 201 Created", "content-type: text/plain; charset=utf-8", "location: /payments/1"];
        assert_eq!((&head[..], body), (&expected[..], "run 1: POST /pay 100"));
    }

    async fn many_headers_are_replayed() {
        let names: Vec<String> = (0..60).map(|n| format!("x-many-{n}")).collect();
        let server = Server::new(|layer| layer.keep_headers(names.iter().map(String::as_str))).await;
        let first = send(server.pay("k", "many")).await;
        let second = send(server.pay("k", "many")).await;
        second.is_replay_of(&first);
        for name in &names {
            assert_eq!(second.header(name), Some("x"));
        }
    }

    async fn a_cookie_is_never_kept() {
        let listed = ["Set-Cookie", "x-run", "content-length", "Connection", "authorization"];
        let server = Server::new(|layer| layer.keep_headers(listed)).await;
        let first = send(server.pay("k", "201")).await;
        assert_eq!(first.headers.get_all("set-cookie").iter().count(), 2);
        let second = send(server.pay("k", "201")).await;
        second.is_replay_of(&first);
        assert!(!second.headers.contains_key("set-cookie"), "{second:?}");
        assert_eq!(second.header("x-run"), Some("1"));
        let kept = server.outcome("k").await;
        let kept = String::from_utf8_lossy(kept.bytes());
        assert!(!kept.contains("secret") && !kept.contains("content-length"), "{kept}");
    }

    async fn only_listed_headers_are_kept() {
        let server = Server::new(|layer| layer.keep_headers(["x-run"])).await;
        let first = send(server.pay("k", "201")).await;
        let second = send(server.pay("k", "201")).await;
        second.is_replay_of(&first);
        assert_eq!((second.header("x-run"), second.header("location")), (Some("1"), None));
        // It says what the body is.
        assert_eq!(second.header("content-type"), first.header("content-type"));
    }

    async fn a_request_in_flight_is_a_conflict() {
        let server = Server::plain().await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        let second = send(server.pay("k", "201")).await;
        second.is_problem(409, "in-flight");
        // How long such an attempt takes is not known yet, and the lease does not tell.
        assert_eq!(second.retry_after(), 1);
        server.shop.gate.add_permits(1);
        let first = running.await.unwrap();
        first.is_new(201);
        send(server.pay("k", "201")).await.is_replay_of(&first);
        assert_eq!(server.effects().await, 1);
    }

    async fn retry_after_is_how_long_attempts_take() {
        let server = Server::plain().await;
        let took = one_attempt(&server, Duration::from_millis(1_100)).await;
        let refused = refused_while_one_runs(&server).await;
        assert_eq!(u64::from(refused.retry_after()), took.as_secs() + 1);
        // Of ten attempts nine are fast.
        for n in 0..20 {
            send(server.pay(&format!("fast{n}"), "201")).await.is_new(201);
        }
        assert_eq!(refused_while_one_runs(&server).await.retry_after(), 1);
    }

    async fn retry_after_is_no_longer_than_the_lease() {
        let lease = Duration::from_millis(1_500);
        let server = Server::with(|records| records.lease(lease), |layer| layer).await;
        one_attempt(&server, Duration::from_millis(3_100)).await;
        let refused = refused_while_one_runs(&server).await;
        assert!((1..=2).contains(&refused.retry_after()), "{refused:?}");
    }

    async fn a_duplicate_can_wait() {
        let wait = Duration::from_mins(1);
        let server = Server::with(|records| records.wait(wait), |layer| layer).await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(send(server.pay("k", "201")))).collect();
        server.shop.gate.add_permits(1);
        let first = running.await.unwrap();
        first.is_new(201);
        for waiting in waiting {
            waiting.await.unwrap().is_replay_of(&first);
        }
        assert_eq!(server.effects().await, 1);
    }

    async fn another_payload_is_refused() {
        let server = Server::plain().await;
        let first = send(server.pay("k", "201")).await;
        send(server.pay("k", "201").body("101")).await.is_problem(422, "key-reused");
        send(server.pay("k", "201")).await.is_replay_of(&first);
        assert_eq!(server.shop.runs(), 1);
    }

    async fn another_payload_is_refused_while_the_first_runs() {
        let server = Server::plain().await;
        let running = tokio::spawn(send(server.pay("k", "wait")));
        eventually("it runs", || async { server.shop.has_begun("k") }).await;
        send(server.pay("k", "201").body("101")).await.is_problem(422, "key-reused");
        server.shop.gate.add_permits(1);
        running.await.unwrap().is_new(201);
        assert_eq!(server.shop.runs(), 1);
    }

    async fn method_path_query_and_body_count() {
        let server = Server::plain().await;
        let ask = async |method, path, body: &'static str| {
            let request = server.request(method, path).header("idempotency-key", "\"k\"");
            send(request.header("x-user", "ann").body(body)).await
        };
        let first = ask("POST", "/pay?a=1", "100").await;
        first.is_new(201);
        for (method, path, body) in [
            ("PATCH", "/pay?a=1", "100"),
            ("POST", "/pax?a=1", "100"),
            ("POST", "/pay?a=2", "100"),
            ("POST", "/pay", "100"),
            ("POST", "/pay?a=1", "1000"),
            ("POST", "/pay?a=1", ""),
            ("POST", "/pay?a=", "1100"),
        ] {
            ask(method, path, body).await.is_problem(422, "key-reused");
        }
        ask("POST", "/pay?a=1", "100").await.is_replay_of(&first);
        assert_eq!(server.shop.runs(), 1);
    }

    async fn a_key_is_somebodys() {
        let server = Server::plain().await;
        let by = async |user| {
            let request = server.request("POST", "/pay").header("idempotency-key", "\"k\"");
            send(request.header("x-user", user).body("100")).await
        };
        let (ann, bob) = (by("ann").await, by("bob").await);
        assert_eq!(ann.is_new(201).text(), "run 1: POST /pay 100");
        assert_eq!(bob.is_new(201).text(), "run 2: POST /pay 100");
        by("ann").await.is_replay_of(&ann);
        by("bob").await.is_replay_of(&bob);
        assert_eq!(server.effects().await, 2);
    }

    async fn who_is_nobody_is_refused() {
        let server = Server::plain().await;
        let request = || server.request("POST", "/pay").header("idempotency-key", "\"k\"");
        let refused = send(request()).await;
        refused.is_problem(401, "no-principal");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        send(request().header("x-user", "")).await.is_problem(401, "no-principal");
        assert_eq!(server.shop.runs(), 0);
    }

    async fn the_link_of_a_problem_can_be_set() {
        let server = Server::new(|layer| layer.policy_url("https://shop.example/retries")).await;
        let answer = send(server.keyless("201")).await;
        let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(problem["type"], "https://shop.example/retries#missing-key");
    }

    async fn a_length_of_a_body_that_is_not_sent_does_not_hinder_a_replay() {
        let server = Server::plain().await;
        for status in ["204", "304"] {
            let act = format!("of-length {status} 100");
            let first = send(server.pay(status, &act)).await;
            first.is_new(status.parse().unwrap());
            send(server.pay(status, &act)).await.is_replay_of(&first);
        }
        let server = Server::new(|layer| layer.methods([Method::HEAD])).await;
        let head = || {
            let request = server.request("HEAD", "/pay").header("x-user", "ann");
            request.header("idempotency-key", "\"k\"").header("x-act", "of-length 200 100")
        };
        let first = send(head()).await;
        first.is_new(200);
        send(head()).await.is_replay_of(&first);
    }

    async fn an_answer_that_switches_protocols_is_not_replayed() {
        let server = Server::plain().await;
        let request = crate::raw::asking(&[b"\"k\""], &["x-act: 101"]);
        assert_eq!(crate::raw::exchange(server.address, &request).await.0, 101);
        let again = send(server.pay("k", "201")).await;
        assert_eq!(again.is_problem(410, "response-not-kept")["original_status"], 101);
    }

    async fn a_failure_that_is_kept_says_when_to_come_back() {
        let server = Server::new(|layer| layer.server_error(rowlock_http::ServerError::Keep)).await;
        let first = send(server.pay("k", "come-back-503")).await;
        assert_eq!(first.is_new(503).retry_after(), 7);
        let again = send(server.pay("k", "201")).await;
        assert_eq!(again.is_replay_of(&first).retry_after(), 7);
    }
}
