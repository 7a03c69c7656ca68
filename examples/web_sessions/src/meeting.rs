//! A place where requests in different processes wait for each other, for the tests: it makes a race certain.
//!
//! A request connects, sends the name of its meeting as a line, and gets one byte when enough requests have come.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The header with the name of a request's meeting.
pub(crate) const MEETING: &str = "x-meeting";

/// Lets `enough` requests with the same name go on together, again and again.
pub(crate) async fn host(listener: TcpListener, enough: usize) -> io::Result<()> {
    let mut meetings: HashMap<String, Vec<TcpStream>> = HashMap::new();
    loop {
        let (mut stream, _) = listener.accept().await?;
        let mut name = String::new();
        BufReader::new(&mut stream).read_line(&mut name).await?;
        let here = meetings.entry(name.clone()).or_default();
        here.push(stream);
        if here.len() == enough {
            for mut stream in meetings.remove(&name).unwrap_or_default() {
                stream.write_all(b"!").await?;
            }
        }
    }
}

async fn attend(host: SocketAddr, name: &[u8]) -> io::Result<()> {
    let mut stream = TcpStream::connect(host).await?;
    stream.write_all(name).await?;
    stream.write_all(b"\n").await?;
    stream.read_exact(&mut [0]).await.map(drop)
}

/// Lets a request that names a meeting wait for the others there.
pub(crate) async fn meet(State(host): State<SocketAddr>, request: Request, next: Next) -> Response {
    if let Some(name) = request.headers().get(MEETING)
        && let Err(error) = attend(host, name.as_bytes()).await
    {
        return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    next.run(request).await
}
