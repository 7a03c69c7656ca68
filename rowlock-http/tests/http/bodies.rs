//! Bodies that are too large, come piece by piece, or break off.

use rowlock::RecordState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::raw;
use crate::server::{Server, over_a_socket, send};

/// The first client has got the whole response; nobody gets it again, and it is not done again.
async fn is_not_kept(server: &Server, status: u16) {
    for _ in 0..2 {
        let problem = send(server.pay("k", "201"))
            .await
            .is_problem(410, "response-not-kept");
        assert_eq!(problem["original_status"], status);
    }
    assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
}

over_a_socket! {
    async fn a_request_over_the_limit_is_refused() {
        let server = Server::new(|layer| layer.max_body(10)).await;
        send(server.pay("k", "201").body("0123456789")).await.is_new(201);
        let answer = send(server.pay("l", "201").body("0123456789a")).await;
        answer.is_problem(413, "body-too-large");
        // Its length comes last.
        let head = raw::request(&[b"\"m\""]);
        let head = String::from_utf8(head).unwrap();
        let head = head.split("content-length").next().unwrap();
        let chunked = |chunks: &str| format!("{head}transfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
        let five = "5\r\n01234\r\n";
        let (status, answer) = raw::exchange(server.address, chunked(&five.repeat(3)).as_bytes()).await;
        assert!(status == 413 && answer.contains("#body-too-large"), "{answer}");
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
        let (status, answer) = raw::exchange(server.address, chunked(&five.repeat(2)).as_bytes()).await;
        assert!(status == 201 && answer.ends_with("0123401234"), "{answer}");
        // The same bytes in other pieces are the same request.
        let whole = send(server.pay("m", "201").body("0123401234")).await;
        assert!(whole.is_replay(), "{whole:?}");
    }

    async fn the_default_limit_of_a_request_is_a_mebibyte() {
        let server = Server::plain().await;
        send(server.pay("k", "201").body(vec![b'x'; 1 << 20])).await.is_new(201);
        let answer = send(server.pay("l", "201").body(vec![b'x'; (1 << 20) + 1])).await;
        answer.is_problem(413, "body-too-large");
    }

    async fn a_response_at_the_limit_is_kept() {
        let server = Server::new(|layer| layer.max_response(100)).await;
        let first = send(server.pay("k", "large 100")).await;
        first.is_new(200);
        send(server.pay("k", "201")).await.is_replay_of(&first);
    }

    async fn the_default_limit_leaves_room_for_the_headers() {
        let server = Server::plain().await;
        let largest = (1 << 20) - (16 << 10);
        let first = send(server.pay("a", &format!("large {largest}"))).await;
        send(server.pay("a", "201")).await.is_replay_of(&first);
        send(server.pay("b", &format!("large {}", largest + 1))).await.is_new(200);
        send(server.pay("b", "201")).await.is_problem(410, "response-not-kept");
    }

    async fn a_response_over_the_limit_is_delivered_and_not_kept() {
        let server = Server::new(|layer| layer.max_response(100)).await;
        let first = send(server.pay("k", "large 101")).await;
        assert_eq!(first.is_new(200).body, "x".repeat(101));
        is_not_kept(&server, 200).await;
    }

    async fn headers_that_are_too_large_are_delivered_and_not_kept() {
        let small = |records: rowlock::Idempotency| records.max_outcome(20_000);
        let server = Server::with(small, |layer| layer.keep_headers(["x-wide"])).await;
        let first = send(server.pay("k", "wide 30000")).await;
        assert_eq!(first.is_new(200).header("x-wide").unwrap().len(), 30_000);
        is_not_kept(&server, 200).await;
    }

    async fn a_stream_within_the_limit_is_kept() {
        let server = Server::new(|layer| layer.max_response(2_000)).await;
        server.shop.gate.add_permits(1);
        let first = send(server.pay("k", "stream 4x500")).await;
        assert_eq!(first.is_new(200).body.len(), 2_000);
        send(server.pay("k", "201")).await.is_replay_of(&first);
    }

    async fn a_stream_that_grows_over_the_limit_is_recorded_before_its_head_is_sent() {
        let server = Server::new(|layer| layer.max_response(1_000)).await;
        let mut first = server.pay("k", "stream 4x500").send().await.unwrap();
        // The head is there, the last piece is not.
        assert_eq!(first.status(), 200);
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Done);
        is_not_kept(&server, 200).await;
        server.shop.gate.add_permits(1);
        let mut whole = Vec::new();
        while let Some(piece) = first.chunk().await.unwrap() {
            whole.extend_from_slice(&piece);
        }
        let expected: Vec<u8> = (b'1'..=b'4').flat_map(|piece| [piece; 500]).collect();
        assert_eq!(whole, expected);
        is_not_kept(&server, 200).await;
    }

    async fn a_body_that_breaks_off_is_delivered_as_far_as_it_goes() {
        // After the limit, and before it.
        for (limit, before) in [(700, 0), (10_000, 1)] {
            let server = Server::new(|layer| layer.max_response(limit)).await;
            server.shop.gate.add_permits(before);
            let mut first = server.pay("k", "stream 3x500!").send().await.unwrap();
            assert_eq!(first.status(), 200);
            assert_eq!(server.record("k").await.unwrap().state, RecordState::Done);
            server.shop.gate.add_permits(1 - before);
            let mut whole = Vec::new();
            let error = loop {
                match first.chunk().await {
                    Ok(Some(piece)) => whole.extend_from_slice(&piece),
                    Ok(None) => panic!("it looks whole"),
                    Err(error) => break error,
                }
            };
            assert_eq!(whole.len(), 1_000, "{error}");
            is_not_kept(&server, 200).await;
        }
    }

    async fn a_response_that_is_shorter_than_it_says_breaks_off_and_is_not_kept() {
        let server = Server::plain().await;
        let first = server.pay("k", "short").send().await;
        let whole = match first {
            Ok(response) => response.bytes().await.is_ok(),
            Err(_) => false,
        };
        assert!(!whole, "its client learns of it");
        is_not_kept(&server, 200).await;
    }

    async fn a_stream_of_events_is_not_read_ahead() {
        let server = Server::plain().await;
        let mut first = server.pay("k", "stream events").send().await.unwrap();
        assert_eq!(first.chunk().await.unwrap().unwrap(), "1".repeat(10));
        is_not_kept(&server, 200).await;
        server.shop.gate.add_permits(1);
        assert_eq!(first.chunk().await.unwrap().unwrap(), "2".repeat(10));
    }

    /// It reads no answer before it has sent all, as many clients do.
    async fn a_client_that_writes_its_whole_body_first_sees_the_refusal() {
        let server = Server::plain().await;
        let body = vec![b'x'; 12 << 20];
        let length = format!("content-length: {}", body.len());
        let chunk = format!("{:x}\r\n", body.len());
        for (key, user, expected) in [
            ("\"k\"", "ann", 413),
            ("\"k", "ann", 400),
            ("\"k\"", "", 401),
            ("\"k\"", "panic", 500),
        ] {
            for is_chunked in [false, true] {
                let framing = if is_chunked { "transfer-encoding: chunked" } else { &*length };
                let head = format!(
                    "POST /pay HTTP/1.1\r\nhost: test\r\nx-user: {user}\r\nidempotency-key: {key}\r\n{framing}\r\n\r\n"
                );
                let mut stream = TcpStream::connect(server.address).await.unwrap();
                stream.write_all(head.as_bytes()).await.unwrap();
                let mut sent = Vec::new();
                if is_chunked {
                    sent.extend_from_slice(chunk.as_bytes());
                }
                sent.extend_from_slice(&body);
                if is_chunked {
                    sent.extend_from_slice(b"\r\n0\r\n\r\n");
                }
                let context = format!("{expected} {is_chunked}");
                stream.write_all(&sent).await.expect(&context);
                let mut answer = [0; 12];
                stream.read_exact(&mut answer).await.expect(&context);
                assert_eq!(answer, *format!("HTTP/1.1 {expected}").as_bytes(), "{context}");
            }
        }
        assert_eq!(server.shop.runs(), 0);
    }
}
