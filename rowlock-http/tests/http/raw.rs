//! Requests byte for byte.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A POST of Ann's with these lines of Idempotency-Key.
pub(crate) fn request(lines: &[&[u8]]) -> Vec<u8> {
    asking(lines, &[])
}

/// The same with other lines.
pub(crate) fn asking(lines: &[&[u8]], others: &[&str]) -> Vec<u8> {
    let mut bytes =
        b"POST /pay HTTP/1.1\r\nhost: test\r\nx-user: ann\r\nconnection: close\r\n".to_vec();
    for line in lines {
        bytes.extend_from_slice(b"idempotency-key: ");
        bytes.extend_from_slice(line);
        bytes.extend_from_slice(b"\r\n");
    }
    for line in others {
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"content-length: 3\r\n\r\n100");
    bytes
}

/// The status and the whole response.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // Who refuses early closes early.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (
        status.unwrap_or_else(|| panic!("no status: {answer:?}")),
        answer,
    )
}

pub(crate) async fn post(address: SocketAddr, lines: &[&[u8]]) -> (u16, String) {
    exchange(address, &request(lines)).await
}
