//! What actix-web cannot do: responses with trailers, and handlers that outlive their server. And what it answers by
//! itself.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::post;
use http_body_util::BodyExt as _;
use rowlock::RecordState;
use rowlock_http::{IdempotencyLayer, Idempotent};
use rowlock_test::eventually;
use tokio::sync::Notify;

use crate::framework::Run;
use crate::raw;
use crate::server::{Server, over_a_socket, send};

const LONG: Duration = Duration::from_mins(1);

/// Tells that a handler has been dropped.
struct Ends(Arc<Notify>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

over_a_socket! {
    async fn a_response_with_trailers_is_delivered_and_not_kept() {
        let server = Server::plain().await;
        let request = raw::asking(&[b"\"k\""], &["te: trailers", "x-act: trailers"]);
        let (status, answer) = raw::exchange(server.address, &request).await;
        assert_eq!(status, 200, "{answer}");
        assert!(answer.contains("run 1: POST /pay 100"), "{answer}");
        assert!(answer.ends_with("0\r\nx-digest: 4711\r\n\r\n"), "{answer}");
        let again = send(server.pay("k", "201")).await;
        assert_eq!(again.is_problem(410, "response-not-kept")["original_status"], 200);
        assert_eq!((server.shop.runs(), server.effects().await), (1, 1));
    }

    async fn the_trailers_of_a_request_reach_its_handler() {
        let handler = async |once: Option<Idempotent>, request: Request| {
            let body = request.into_body().collect().await.unwrap();
            let trailers = body.trailers().cloned().unwrap_or_default();
            format!("{} {trailers:?} {:?}", once.is_some(), body.to_bytes())
        };
        let routes = move |layer, _| Router::new().route("/pay", post(handler)).layer(layer);
        for in_body in [false, true] {
            // Without a key the layer reads the body, and hands the request on.
            let set = |layer: IdempotencyLayer| {
                if in_body { layer.key_in_json("$.id").required(false) } else { layer }
            };
            let server = Server::routed(|records| records, set, routes, Run::default()).await;
            let head = String::from_utf8(raw::asking(&[b"\"k\""], &["trailer: x-digest"])).unwrap();
            let head = head.split("content-length").next().unwrap();
            let request = format!("{head}transfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\nx-digest: 4711\r\n\r\n");
            let (status, answer) = raw::exchange(server.address, request.as_bytes()).await;
            let expected = format!(r#"{} {{"x-digest": "4711"}} b"{{}}""#, !in_body);
            assert!(status == 200 && answer.ends_with(&expected), "{answer}");
        }
    }

    async fn the_trailers_of_a_request_count_as_its_headers() {
        let server = Server::new(|layer| layer.headers_count(["x-amount"])).await;
        let head = String::from_utf8(raw::request(&[b"\"k\""])).unwrap();
        let head = head.split("content-length").next().unwrap();
        let sent = async |trailers: &str| {
            let request = format!("{head}transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n{trailers}\r\n");
            raw::exchange(server.address, request.as_bytes()).await.0
        };
        let statuses = ["x-amount: 5\r\n", "x-amount: 5\r\nx-trace: 1\r\n", "x-amount: 6\r\n", ""].map(sent);
        let mut told = Vec::new();
        for status in statuses {
            told.push(status.await);
        }
        assert_eq!(told, [201, 201, 422, 422]);
    }

    /// As without the layer. Otherwise a client that sends it again would have both done.
    async fn a_request_without_a_key_ends_with_its_client() {
        let (begun, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (begins, ends) = (Arc::clone(&begun), Arc::clone(&ended));
        let handler = async move || {
            let _ends = Ends(Arc::clone(&ends));
            begins.notify_one();
            std::future::pending::<()>().await;
        };
        let routes = move |layer, _| Router::new().route("/pay", post(handler)).layer(layer);
        let set = |layer: IdempotencyLayer| layer.key_in_json("$.id").required(false);
        let server = Server::routed(|records| records, set, routes, Run::default()).await;
        let hangs_up = tokio::spawn(send(server.keyless("201").body("{}")));
        begun.notified().await;
        hangs_up.abort();
        let ended = tokio::time::timeout(LONG, ended.notified()).await;
        ended.expect("the handler is dropped");
    }

    /// The process ends while it reads the body of a response: its key is not free, the next one has to wait for the
    /// lease.
    async fn a_process_that_ends_does_not_free_a_key_whose_work_is_done() {
        let process = tokio::runtime::Runtime::new().unwrap();
        let server = process.spawn(Server::plain()).await.unwrap();
        let request = server.pay("k", "stream 3x500").send();
        let request = tokio::spawn(async move { drop(request.await) });
        // The second piece has a place when the first one was read.
        let read = || async { server.shop.noted().contains(&"piece 2".to_owned()) };
        eventually("the body is read", read).await;
        // Every task is dropped where it stands.
        let end = move || process.shutdown_timeout(Duration::from_mins(1));
        tokio::task::spawn_blocking(end).await.unwrap();
        request.await.unwrap();
        // The background work of these requests is done.
        server.rowlock.flush().await;
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Running);
    }

    async fn a_handler_whose_client_has_hung_up_is_waited_for() {
        let (mut server, layer) = Server::and_layer(|layer| layer).await;
        let hangs_up = tokio::spawn(send(server.pay("k", "wait")));
        eventually("the effect", || async { server.effects().await == 1 }).await;
        hangs_up.abort();
        // No connection is left.
        server.stop().await;
        let draining = tokio::spawn(async move { layer.drain(LONG).await });
        tokio::task::yield_now().await;
        assert!(!draining.is_finished(), "the handler runs");
        server.shop.gate.add_permits(1);
        assert_eq!(draining.await.unwrap(), []);
        assert_eq!(server.record("k").await.unwrap().state, RecordState::Done);
    }

    /// It waits for an answer before it sends its body, and does not have to send it.
    async fn a_client_that_asks_first_need_not_send_a_body_that_is_refused() {
        let server = Server::plain().await;
        let head = "POST /pay HTTP/1.1\r\nhost: test\r\nx-user: ann\r\nidempotency-key: \"k\"\r\n\
                    expect: 100-continue\r\ncontent-length: 12000000\r\n\r\n";
        let (status, answer) = raw::exchange(server.address, head.as_bytes()).await;
        assert_eq!(status, 413, "{answer}");
    }

    async fn a_body_that_breaks_off_is_to_be_sent_again() {
        let server = Server::plain().await;
        let head = String::from_utf8(raw::request(&[b"\"k\""])).unwrap();
        let head = head.split("content-length").next().unwrap();
        let broken = format!("{head}transfer-encoding: chunked\r\n\r\nzz\r\n");
        let (status, answer) = raw::exchange(server.address, broken.as_bytes()).await;
        assert!(status == 400 && answer.contains("#body-unreadable"), "{answer}");
        assert!(answer.contains("retry-after: "), "{answer}");
        assert!(server.record("k").await.is_none());
    }
}
