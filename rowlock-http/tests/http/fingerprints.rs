//! What distinguishes one request from another, by the settings.

use axum::http::HeaderValue;
use rowlock::Fingerprint;
use rowlock_http::Received;

use crate::server::{Server, over_a_socket, send};

const JSON: &str = "application/json";

/// A form with a file, with this boundary.
fn form(boundary: &str, file: &str) -> (String, String) {
    let part = |head: &str, content: &str| {
        format!("--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n")
    };
    let parts = [
        part("name=\"cents\"", "100"),
        part("name=\"receipt\"; filename=\"r.txt\"", file),
    ];
    let body = format!("{}--{boundary}--\r\n", parts.concat());
    (format!("multipart/form-data; boundary={boundary}"), body)
}

/// The lines in any order. A digest that a service has to look up takes its time.
async fn lines(request: Received) -> Result<Fingerprint, &'static str> {
    tokio::task::yield_now().await;
    let text = std::str::from_utf8(request.body()).map_err(|_| "The body is no text.")?;
    assert_ne!(text, "panic", "as was asked");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    Ok(Fingerprint::of(lines.join("\n")))
}

over_a_socket! {
    async fn chosen_fields_alone_count() {
        let server = Server::new(|layer| layer.json_only(["$.cents", "$.to"])).await;
        let ask = async |body: &'static str, kind: &'static str| {
            let request = server.pay("k", "201").header("content-type", kind);
            send(request.body(body)).await
        };
        let json = "application/json";
        let first = ask(r#"{"cents":100,"to":{"a":1,"b":[2]},"sent":1}"#, json).await;
        first.is_new(201);
        let same = r#" {"sent":2, "to":{"b":[ 2 ],"a":1}, "cents":100} "#;
        ask(same, "application/json; charset=utf-8").await.is_replay_of(&first);
        ask(same, "application/pay+json").await.is_replay_of(&first);
        for other in [
            r#"{"cents":101,"to":{"a":1,"b":[2]},"sent":1}"#,
            r#"{"cents":100,"to":{"a":1,"b":[3]},"sent":1}"#,
            r#"{"cents":100,"sent":1}"#,
            "no JSON",
        ] {
            ask(other, json).await.is_problem(422, "key-reused");
        }
        // If the Content-Type is not JSON, all bytes count.
        ask(same, "text/plain").await.is_problem(422, "key-reused");
        let text = send(server.pay("t", "201").body("a")).await;
        text.is_new(201);
        send(server.pay("t", "201").body("b")).await.is_problem(422, "key-reused");
        assert_eq!(server.shop.runs(), 2);
    }

    async fn excluded_fields_do_not_count() {
        let server = Server::new(|layer| layer.json_except(["$.sent", "$.items[*].trace"])).await;
        let ask = async |body: &'static str| {
            send(server.pay("k", "201").header("content-type", JSON).body(body)).await
        };
        let first = ask(r#"{"cents":100,"sent":1,"items":[{"id":1,"trace":"a"}]}"#).await;
        first.is_new(201);
        for same in [
            r#"{"sent":2,"items":[{"trace":"b","id":1}],"cents":100}"#,
            r#"{"items":[{"id":1}],"cents":100}"#,
        ] {
            ask(same).await.is_replay_of(&first);
        }
        for other in [
            r#"{"cents":100,"items":[{"id":2}]}"#,
            r#"{"cents":100,"items":[{"id":1},{"trace":"a"}]}"#,
            r#"{"cents":100,"cents":100,"items":[{"id":1}]}"#,
            r#"{"cents":100}"#,
        ] {
            ask(other).await.is_problem(422, "key-reused");
        }
        assert_eq!(server.shop.runs(), 1);
    }

    async fn chosen_headers_count() {
        let server = Server::new(|layer| layer.headers_count(["api-version"])).await;
        let ask = async |key: &str, versions: &[&'static str]| {
            let mut request = server.pay(key, "201").header("x-other", versions.len());
            for version in versions {
                request = request.header("api-version", HeaderValue::from_static(version));
            }
            send(request).await
        };
        let all: [&[&str]; 5] = [&[], &[""], &["1"], &["1", "2"], &["2", "1"]];
        for (key, versions) in all.iter().enumerate() {
            let key = key.to_string();
            let first = ask(&key, versions).await;
            first.is_new(201);
            for others in &all {
                let answer = ask(&key, others).await;
                if others == versions {
                    answer.is_replay_of(&first);
                } else {
                    answer.is_problem(422, "key-reused");
                }
            }
        }
    }

    async fn where_the_values_of_a_header_end_makes_a_difference() {
        let server = Server::new(|layer| layer.headers_count(["a", "b"])).await;
        let ask = async |name: &str| {
            let request = server.pay("k", "201").header(name, "header");
            send(request.header(name, "b")).await
        };
        ask("a").await.is_new(201);
        ask("b").await.is_problem(422, "key-reused");
    }

    async fn a_form_counts_by_its_parts_and_not_by_its_boundary() {
        let server = Server::plain().await;
        let ask = async |boundary: &str, file: &str| {
            let (kind, body) = form(boundary, file);
            send(server.pay("k", "201").header("content-type", kind).body(body)).await
        };
        let first = ask("aaaa", "paid").await;
        first.is_new(201);
        ask("bbbb", "paid").await.is_replay_of(&first);
        ask("aaaa", "not paid").await.is_problem(422, "key-reused");
        let (_, body) = form("aaaa", "paid");
        send(server.pay("k", "201").body(body)).await.is_problem(422, "key-reused");
        assert_eq!(server.shop.runs(), 1);
    }

    async fn a_hook_decides_what_of_the_body_counts() {
        let server = Server::new(|layer| layer.fingerprint(lines)).await;
        let ask = async |path: &str, body: &'static [u8]| {
            let request = server.request("POST", path).header("x-user", "ann").header("x-act", "201");
            send(request.header("idempotency-key", "\"k\"").body(body)).await
        };
        let first = ask("/pay", b"a\nb").await;
        first.is_new(201);
        ask("/pay", b"b\na").await.is_replay_of(&first);
        ask("/pay", b"a\nc").await.is_problem(422, "key-reused");
        ask("/refund", b"a\nb").await.is_problem(422, "key-reused");
        assert_eq!(server.shop.runs(), 1);
    }

    async fn what_a_hook_cannot_read_is_refused_and_leaves_nothing() {
        let server = Server::new(|layer| layer.fingerprint(lines)).await;
        let refused = send(server.pay("k", "201").body(&b"\xff"[..])).await;
        refused.is_problem(400, "request-refused");
        assert!(refused.text().contains("The body is no text."), "{refused:?}");
        send(server.pay("k", "201").body("panic")).await.is_problem(500, "handler-panicked");
        assert!(server.record("k").await.is_none());
        send(server.pay("k", "201")).await.is_new(201);
    }

    async fn a_wrong_path_or_name_is_told_at_the_start_and_refuses_all() {
        let server = Server::new(|layer| {
            for (wrong, setting) in [
                (layer.clone().json_only(["cents"]), "json_only"),
                (layer.clone().json_except(["$.a", "$["]), "json_except"),
                (layer.clone().headers_count(["a b"]), "headers_count"),
                (layer.clone().key_in_json("id").json_only(["$.a"]), "key_in_json"),
            ] {
                let error = wrong.check().unwrap_err().to_string();
                assert!(error.contains(setting), "{error}");
            }
            layer.json_only(["cents"])
        });
        let server = server.await;
        send(server.pay("k", "201")).await.is_problem(500, "misconfigured");
        assert_eq!(server.shop.runs(), 0);
    }

    /// The paths are wrong, or another client spells its fields in another way.
    async fn paths_that_select_nothing_let_all_bytes_count() {
        let server = Server::new(|layer| layer.json_only(["$.cents", "$.to.id"])).await;
        let ask = async |body: &'static str| {
            send(server.pay("k", "201").header("content-type", JSON).body(body)).await
        };
        let first = ask(r#"{"amount":100,"to":{"Id":7}}"#).await;
        first.is_new(201);
        ask(r#"{"amount":100,"to":{"Id":7}}"#).await.is_replay_of(&first);
        for other in [r#"{"amount":900,"to":{"Id":7}}"#, r#"{"amount":100,"to":{"Id":8}}"#, "{}", "7", "[]"] {
            ask(other).await.is_problem(422, "key-reused");
        }
        assert_eq!(server.shop.runs(), 1);
    }

    async fn a_request_that_differs_is_not_asked_for_again_under_a_new_key() {
        let server = Server::plain().await;
        send(server.pay("k", "201")).await.is_new(201);
        let problem = send(server.pay("k", "201").body("101")).await.is_problem(422, "key-reused");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("If it is a retry"), "{detail}");
    }
}
