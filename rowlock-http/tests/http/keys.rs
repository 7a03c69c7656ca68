//! The header field, and who needs it.

use axum::http::Method;
use rowlock::RecordState;
use rowlock_http::IdempotencyLayer;

use crate::raw;
use crate::server::{Server, over_a_socket, send};

fn problem(answer: &str) -> bool {
    answer.contains("application/problem+json") && answer.contains("#bad-key")
}

over_a_socket! {
    /// `chr` of the ABNF in RFC 8941, section 3.3.3. (What no field value can have in it, the server refuses by
    /// itself: then there is a 400, and no problem document.)
    async fn every_byte_in_a_string_is_judged_as_the_grammar_says() {
        let server = Server::plain().await;
        let (mut accepted, mut ours) = (0, 0);
        for byte in 0..=255_u8 {
            let unescaped = matches!(byte, 0x20..=0x21 | 0x23..=0x5b | 0x5d..=0x7e);
            let escaped = matches!(byte, b'"' | b'\\');
            let key = |start: &str| format!("{start}{}", char::from(byte));
            for (value, good, key) in [
                ([&b"\"u"[..], &[byte], b"\""].concat(), unescaped, key("u")),
                ([&b"\"e\\"[..], &[byte], b"\""].concat(), escaped, key("e")),
            ] {
                let (status, answer) = raw::post(server.address, &[&value]).await;
                if good {
                    assert_eq!(status, 201, "{value:?}: {answer}");
                    let record = server.record(&key).await.expect("the key, unescaped");
                    assert_eq!(record.state, RecordState::Done);
                    accepted += 1;
                } else {
                    assert_eq!(status, 400, "{value:?}: {answer}");
                    ours += i64::from(problem(&answer));
                }
            }
        }
        assert_eq!((accepted, server.effects().await), (93 + 2, 95));
        // All but the 32 control characters (TAB is one that a field may have), on two occasions.
        assert!(ours >= 2 * (256 - 32) - 95, "{ours}");
    }

    async fn what_is_no_string_is_refused() {
        let server = Server::new(IdempotencyLayer::strict).await;
        let refused: [&[u8]; 26] = [
            b"", b"   ", b"\"\"", b"foo", b"*foo", b"'foo'", b"\"foo", b"foo\"", b"\"foo\\", b"\"foo\\\"",
            b"\"foo \\,\"", b"\"foo\"bar", b"\"foo\" \"bar\"", b"\"foo\", \"bar\"", b"\"foo\",", b"(\"foo\")",
            b"a=\"foo\"", b"\"foo\";", b"\"foo\";A", b"17", b"1.5", b"?1", b":Zm9v:", b"@1659578233",
            b"%\"foo\"", b"\xe2\x80\x9cfoo\xe2\x80\x9d",
        ];
        for value in refused {
            let (status, answer) = raw::post(server.address, &[value]).await;
            assert_eq!(status, 400, "{}: {answer}", value.escape_ascii());
            assert!(problem(&answer), "{}: {answer}", value.escape_ascii());
        }
        assert_eq!((server.shop.runs(), server.effects().await), (0, 0));
        send(server.pay("foo", "201")).await.is_new(201);
    }

    async fn parameters_mean_nothing() {
        let server = Server::plain().await;
        let values: [&[u8]; 5] = [b"\"k\"", b"  \"k\"  ", b"\"k\";a", b"\"k\"; a=1;b=\"x\"", b"\"k\";a=?0"];
        for value in values {
            let (status, answer) = raw::post(server.address, &[value]).await;
            assert_eq!(status, 201, "{answer}");
        }
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn two_lines_are_refused() {
        for strict in [false, true] {
            let server = Server::new(|layer| if strict { layer.strict() } else { layer }).await;
            let lines: [[&[u8]; 2]; 4] = [
                [b"\"a\"", b"\"b\""], [b"\"a\"", b"\"a\""], [b"\"a", b"b\""], [b"a", b"a"],
            ];
            for lines in lines {
                let (status, answer) = raw::post(server.address, &lines).await;
                assert_eq!(status, 400, "{answer}");
                assert!(problem(&answer), "{answer}");
            }
            assert_eq!(server.shop.runs(), 0);
        }
    }

    async fn a_bare_key_is_the_same_record() {
        let server = Server::plain().await;
        let key = "8e03978e-40d5-43dd-bc93-6894a57f9324";
        let first = send(server.keyless("201").header("idempotency-key", key)).await;
        first.is_new(201);
        send(server.pay(key, "201")).await.is_replay_of(&first);
        let first = send(server.pay("17", "201")).await;
        first.is_new(201);
        let bare = send(server.keyless("201").header("idempotency-key", "17")).await;
        bare.is_replay_of(&first);
        assert_eq!(server.effects().await, 2);
    }

    async fn what_is_half_a_string_is_refused() {
        let server = Server::plain().await;
        let refused: [&[u8]; 10] = [
            b"", b"\"\"", b"\"foo", b"foo\"", b"'foo'", b"a b", b"a,b", b"a;b", b"a\\b", b"\xc3\xbc",
        ];
        for value in refused {
            let (status, answer) = raw::post(server.address, &[value]).await;
            assert_eq!(status, 400, "{}: {answer}", value.escape_ascii());
            assert!(problem(&answer), "{answer}");
        }
        assert_eq!(server.shop.runs(), 0);
    }

    async fn a_key_that_is_not_accepted_is_refused_before_any_look_up() {
        let server = Server::new(|layer| layer.max_key(4).key_format(|key| !key.contains('x'))).await;
        send(server.pay("1234", "201")).await.is_new(201);
        server.break_table().await;
        // Nothing can be looked up, and it makes no difference.
        send(server.pay("12345", "201")).await.is_problem(400, "bad-key");
        send(server.pay("x", "201")).await.is_problem(400, "bad-key");
        send(server.pay("1234", "201")).await.is_problem(503, "unavailable");
        assert_eq!(server.shop.runs(), 1);
    }

    async fn the_longest_key_has_255_characters() {
        let server = Server::plain().await;
        send(server.pay(&"k".repeat(255), "201")).await.is_new(201);
        send(server.pay(&"k".repeat(256), "201")).await.is_problem(400, "bad-key");
        assert_eq!(server.shop.runs(), 1);
    }

    async fn a_missing_key_is_refused() {
        let server = Server::plain().await;
        send(server.keyless("201")).await.is_problem(400, "missing-key");
        assert_eq!(server.shop.runs(), 0);
    }

    async fn a_key_that_is_not_required_may_be_missing() {
        let server = Server::new(|layer| layer.required(false)).await;
        for run in ["1", "2"] {
            // Nobody is logged in, and no limit is set.
            let request = server.request("POST", "/pay").body(vec![b'x'; 2 << 20]);
            let answer = send(request).await;
            answer.is_new(201);
            assert_eq!((answer.header("x-run"), answer.header("x-has-attempt")), (Some(run), Some("0")));
        }
        let first = send(server.pay("k", "201")).await;
        assert_eq!(first.header("x-has-attempt"), Some("1"));
        send(server.pay("k", "201")).await.is_replay_of(&first);
    }

    async fn other_methods_pass_untouched() {
        let server = Server::plain().await;
        for (run, method) in ["GET", "PUT", "DELETE", "PUT"].into_iter().enumerate() {
            let request = server.request(method, "/pay").header("idempotency-key", "\"k\"");
            let answer = send(request).await;
            answer.is_new(201);
            let run = (run + 1).to_string();
            assert_eq!((answer.header("x-run"), answer.header("x-has-attempt")), (Some(&*run), Some("0")));
        }
        for method in ["POST", "PATCH"] {
            send(server.request(method, "/pay")).await.is_problem(400, "missing-key");
        }
        assert!(server.record("k").await.is_none());
    }

    async fn the_methods_can_be_chosen() {
        let server = Server::new(|layer: IdempotencyLayer| layer.methods([Method::PUT])).await;
        send(server.request("PUT", "/pay")).await.is_problem(400, "missing-key");
        send(server.request("POST", "/pay")).await.is_new(201);
    }
}
