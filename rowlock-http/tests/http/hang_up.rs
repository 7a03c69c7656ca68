//! Clients that are gone before their answer.

use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::{Router, routing::any};
use rowlock_http::IdempotencyLayer;
use rowlock_test::{eventually, patience};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::framework::{Hyper, Run};
use crate::raw::exchange;
use crate::server::{Server, over_a_socket, send};
use crate::shop::{Shop, handle};

const ROUNDS: usize = 1_000;
const ROUNDS_OF_A_SHAPE: usize = 25;

async fn connected(server: &Server, key: &str, act: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!(
        "POST /pay HTTP/1.1\r\nhost: test\r\nx-user: ann\r\nx-act: {act}\r\nidempotency-key: \"{key}\"\r\n\
         content-length: 3\r\n\r\n100"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

impl Shop {
    /// How many keys the server was handed.
    fn seen(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn was_handed(&self, key: &str) -> bool {
        self.seen.lock().unwrap().contains(&format!("\"{key}\""))
    }

    fn was_dropped(&self, key: &str) -> bool {
        self.dropped.lock().unwrap().contains(&format!("\"{key}\""))
    }

    fn was_answered(&self, key: &str) -> bool {
        self.answered
            .lock()
            .unwrap()
            .contains(&format!("\"{key}\""))
    }
}

/// How a client goes, right after the last byte of its request.
#[derive(Clone, Copy, Debug)]
enum Goes {
    /// It closes the connection.
    Fin,
    /// It resets the connection.
    Reset,
    /// It closes its half of the connection, and waits.
    HalfClose,
}

/// One that is slow on a busy machine, and never too slow for an answer.
async fn server(hyper: Hyper) -> Server {
    let routes = |layer, _| Router::new().route("/{*rest}", any(handle)).layer(layer);
    let timeout = patience();
    Server::routed(
        |records| records,
        |layer| layer,
        routes,
        Run { hyper, timeout },
    )
    .await
}

/// Sends requests in all the shapes in which one with a body can arrive, none of them twice. (The larger one fits into
/// the window of a connection: a reset throws away what has not left the client.)
///
/// Most clients go at once, with or without the server having read anything; those of each fifth round go when their
/// request was handed over, which is how many at least were.
async fn send_and_go(server: &Server, goes: Goes) -> (usize, usize) {
    let (mut sent, mut for_sure) = (0, 0);
    for round in 0..ROUNDS_OF_A_SHAPE {
        for (shape, size) in [("whole", 3), ("whole", 30_000), ("parts", 3), ("chunks", 3)] {
            let key = format!("{shape}-{size}-{round}");
            let (head, body) = request(&key, shape, size);
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            if shape == "parts" {
                stream.set_nodelay(true).unwrap();
                stream.write_all(&head).await.unwrap();
                stream.write_all(&body).await.unwrap();
            } else {
                stream.write_all(&[head, body].concat()).await.unwrap();
            }
            sent += 1;
            if round % 5 == 0 {
                for_sure += 1;
                let handed_over = || async { server.shop.was_handed(&key) };
                eventually("the request is handed over", handed_over).await;
            }
            match goes {
                Goes::Fin => drop(stream),
                Goes::Reset => {
                    stream.set_zero_linger().unwrap();
                    drop(stream);
                }
                Goes::HalfClose => {
                    stream.shutdown().await.unwrap();
                    // Whatever the server says to that.
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
            }
        }
    }
    (sent, for_sure)
}

/// With axum as it is, hyper may see the end of the connection before it hands a request over. What it hands over is
/// done to its end; of the others there is no trace.
async fn what_is_handed_over_is_done(goes: Goes) {
    let mut server = server(Hyper::AsAxumHasIt).await;
    let (sent, for_sure) = send_and_go(&server, goes).await;
    // No connection is left: nothing more is handed over.
    server.stop().await;
    let handed_over = i64::try_from(server.shop.seen()).unwrap();
    let at_least = i64::try_from(for_sure).unwrap();
    assert!(handed_over >= at_least && at_least > 0, "{handed_over}");
    let done = all_done(&server, handed_over).await;
    println!("{goes:?}: {handed_over} of {sent} requests were handed over, {done} done");
    assert_eq!(
        done, handed_over,
        "{goes:?}: some that were handed over were never done"
    );
    let rows = server
        .db
        .number("SELECT COUNT(*) FROM rowlock_idempotency")
        .await;
    assert_eq!((server.effects().await, rows), (done, done));
}

/// Where hyper lets clients close their half, all are.
async fn all_are_done(goes: Goes) {
    let server = server(Hyper::HalfClose).await;
    let (sent, _) = send_and_go(&server, goes).await;
    let sent = i64::try_from(sent).unwrap();
    assert_eq!(
        all_done(&server, sent).await,
        sent,
        "{goes:?}: some were never done"
    );
    assert_eq!(server.effects().await, sent);
}

/// How many are done, when so many are, or when that takes too long.
async fn all_done(server: &Server, expected: i64) -> i64 {
    let done = || {
        server
            .db
            .number("SELECT COUNT(*) FROM rowlock_idempotency WHERE state = 'done'")
    };
    let all = async {
        while done().await < expected {
            tokio::task::yield_now().await;
        }
    };
    let _ = tokio::time::timeout(patience(), all).await;
    done().await
}

fn request(key: &str, shape: &str, size: usize) -> (Vec<u8>, Vec<u8>) {
    let body = vec![b'1'; size];
    let (length, body) = if shape == "chunks" {
        let chunk = [format!("{size:x}\r\n").as_bytes(), &body, b"\r\n"].concat();
        let body = [&chunk, &chunk, b"0\r\n\r\n".as_slice()].concat();
        ("transfer-encoding: chunked".to_owned(), body)
    } else {
        (format!("content-length: {size}"), body)
    };
    let head = format!(
        "POST /pay HTTP/1.1\r\nhost: test\r\nx-user: ann\r\nidempotency-key: \"{key}\"\r\n{length}\r\n\r\n"
    );
    (head.into_bytes(), body)
}

over_a_socket! {
    /// A client may hang up at any moment: the effect happens once, and a retry gets its response.
    async fn a_thousand_clients_hang_up() {
        let server = Server::plain().await;
        // Of these the handler has run for sure.
        let mut begun = Vec::new();
        for round in 0..ROUNDS {
            let key = format!("k{round}");
            match round % 4 {
                // At once.
                0 => drop(connected(&server, &key, "201").await),
                // A little later.
                1 => {
                    let stream = connected(&server, &key, "201").await;
                    for _ in 0..round % 97 {
                        tokio::task::yield_now().await;
                    }
                    drop(stream);
                }
                // In the middle of the handler, which goes on when the server has given the answer up.
                2 => {
                    let stream = connected(&server, &key, "wait").await;
                    eventually("it runs", || async { server.shop.has_begun(&key) }).await;
                    drop(stream);
                    eventually("nobody waits", || async { server.shop.was_dropped(&key) }).await;
                    server.shop.gate.add_permits(1);
                    let taken = || async { server.shop.gate.available_permits() == 0 };
                    eventually("it goes on, and not the next one", taken).await;
                    begun.push(key);
                }
                // With the first bytes of the answer.
                _ => {
                    let mut stream = connected(&server, &key, "201").await;
                    stream.read_exact(&mut vec![0; 1 + round % 60]).await.unwrap();
                    drop(stream);
                    begun.push(key);
                }
            }
        }
        assert_eq!(begun.len(), ROUNDS / 2);
        let mut replayed = 0;
        for round in 0..ROUNDS {
            let key = format!("k{round}");
            // Wait for the requests that still run.
            let answer = loop {
                let answer = send(server.pay(&key, "201")).await;
                if answer.status != 409 {
                    break answer;
                }
                answer.is_problem(409, "in-flight");
                tokio::task::yield_now().await;
            };
            assert_eq!(answer.status, 201, "{key}: {answer:?}");
            assert!(answer.is_replay() || !begun.contains(&key), "{key}: {answer:?}");
            replayed += usize::from(answer.is_replay());
        }
        assert!(replayed >= ROUNDS / 2, "{replayed}");
        let sql = "SELECT COUNT(*) FROM (SELECT k FROM effect GROUP BY k HAVING COUNT(*) = 1)";
        let once = server.db.number(sql).await;
        assert_eq!((once, server.effects().await), (1_000, 1_000));
    }

    async fn a_client_that_closes_after_the_last_byte_stops_nothing_that_was_handed_over() {
        what_is_handed_over_is_done(Goes::Fin).await;
    }

    async fn a_client_that_resets_after_the_last_byte_stops_nothing_that_was_handed_over() {
        what_is_handed_over_is_done(Goes::Reset).await;
    }

    async fn a_client_that_half_closes_after_the_last_byte_stops_nothing_that_was_handed_over() {
        what_is_handed_over_is_done(Goes::HalfClose).await;
    }

    async fn nothing_is_stopped_where_clients_may_close_their_half() {
        for goes in [Goes::Fin, Goes::Reset, Goes::HalfClose] {
            all_are_done(goes).await;
        }
    }

    /// A request that never came whole is none.
    async fn a_request_that_breaks_off_leaves_nothing_behind() {
        let server = Server::plain().await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let half = "POST /pay HTTP/1.1\r\nhost: test\r\nx-user: ann\r\nidempotency-key: \"k\"\r\n\
                    content-length: 3\r\n\r\n10";
        stream.write_all(half.as_bytes()).await.unwrap();
        drop(stream);
        eventually("it is dropped or answered", || async {
            server.shop.was_dropped("k") || server.shop.was_answered("k")
        })
        .await;
        assert!(server.record("k").await.is_none());
        assert_eq!(server.shop.runs(), 0);
        send(server.pay("k", "201")).await.is_new(201);
    }

    async fn a_body_that_does_not_come_is_let_go() {
        let server = Server::new(|layer| layer.body_timeout(Duration::from_millis(100))).await;
        let (status, answer) = exchange(server.address, &unfinished("k")).await;
        assert_eq!(status, 408, "{answer}");
        assert!(answer.contains("body-too-slow") && answer.contains("100ms"), "{answer}");
        assert!(server.record("k").await.is_none());
        send(server.pay("k", "201")).await.is_new(201);
        assert_eq!(server.shop.runs(), 1);
    }

    async fn a_body_that_does_not_come_is_let_go_behind_an_outer_time_limit() {
        let limited = |layer, _| {
            let limit = |request: Request, next: Next| async {
                let answer = tokio::time::timeout(Duration::from_millis(10), next.run(request)).await;
                answer.unwrap_or_else(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
            };
            Router::new().route("/{*rest}", any(handle)).layer(layer).layer(from_fn(limit))
        };
        let layer = |layer: IdempotencyLayer| layer.body_timeout(Duration::from_millis(500));
        let server = Server::routed(|records| records, layer, limited, Run::default()).await;
        // From now on all tasks of the server are there.
        let _ = send(server.pay("first", "201")).await;
        eventually("the first one has run", || async { server.shop.runs() == 1 }).await;
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        // The clients are gone without a word: their connections stay open.
        let mut streams = Vec::new();
        for n in 0..50 {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(&unfinished(&n.to_string())).await.unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 504");
            streams.push(stream);
        }
        assert!(tasks() > before, "the layer waits for the bodies");
        eventually("no task is left", || async { tasks() <= before }).await;
        assert_eq!(server.shop.runs(), 1);
    }
}

/// A request whose body lacks its end; nothing more comes until it is answered.
fn unfinished(key: &str) -> Vec<u8> {
    let head = format!(
        "POST /pay HTTP/1.1\r\nhost: test\r\nx-user: ann\r\nidempotency-key: \"{key}\"\r\nconnection: close\r\n\
         content-length: 3\r\n\r\n10"
    );
    head.into_bytes()
}
