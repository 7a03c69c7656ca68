//! Clients that send slowly.

use std::time::Duration;

use rowlock_test::{Db, on_every_engine};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::world::World;
use payments::limits::Limits;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_mins(10);

/// Everything that the server sends until it closes the connection.
async fn answer(world: &World, request: &str) -> String {
    let address = world.shop.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let closed = stream.read_to_string(&mut answer);
    let closed = timeout(Duration::from_secs(30), closed).await;
    closed.expect("the server closes the connection").unwrap();
    answer
}

on_every_engine! {
    async fn a_head_that_does_not_come_to_its_end_is_cut_off(db: &Db) {
        let limits = Limits { head: SHORT, body: LONG, ..Limits::default() };
        let world = World::with(db, limits).await;
        for request in ["", "POST /payments HTTP/1.1\r\nHost: shop\r\n"] {
            assert_eq!(answer(&world, request).await, "", "{request:?}");
        }
    }

    async fn a_body_that_does_not_come_to_its_end_is_cut_off(db: &Db) {
        let limits = Limits { head: LONG, body: SHORT, ..Limits::default() };
        let world = World::with(db, limits).await;
        for route in ["payments", "orders"] {
            let head = format!(
                "POST /{route} HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer alice\r\nIdempotency-Key: \"k\"\r\n\
                 Content-Length: 100\r\n\r\n{{"
            );
            let answer = answer(&world, &head).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
        }
        assert_eq!(world.pay("k", "4711", 500).await.status, 201, "nothing is bound to it");
    }
}
