//! Clients that are gone before their answer.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::eventually;
use crate::server::{Server, over_a_socket, send};

const ROUNDS: usize = 1_000;

async fn connected(server: &Server, key: &str, act: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!(
        "POST /pay HTTP/1.1\r\nhost: test\r\nx-user: ann\r\nx-act: {act}\r\nidempotency-key: \"{key}\"\r\n\
         content-length: 3\r\n\r\n100"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

over_a_socket! {
    /// Whoever hangs up, at whatever moment: the effect happens once, and its retry gets it.
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
            // What is still running is waited for.
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
}
