//! The shop of the example `payments` in several processes, and its clients.
//!
//! - [`campaign`]: four processes, one of them killed every 200 ms; [`judge`] compares what the clients got with the
//!   books.
//! - [`superseded`]: an attempt that learns after its charge that another process took it over.

mod campaign;
mod judge;
mod superseded;

use std::future::pending;
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use axum::routing::post;
use rand::Rng;
use rowlock_http::IdempotencyLayer;
use tokio::net::TcpListener;

use crate::role::Role;
use payments::gateway;
use payments::limits::{self, Limits};
use payments::server;
use rowlock_test::{Process, tell};

pub(crate) use campaign::run;
pub(crate) use superseded::superseded;

const LEASE: Duration = Duration::from_secs(1);

/// Runs the provider. The URL of its role is its file.
pub(crate) async fn gateway(role: &Role) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let provider = gateway::router(role.url.clone().into()).await.unwrap();
    tell(listener.local_addr().unwrap().port());
    gateway::serve(listener, provider).await.unwrap();
}

/// Runs one process of the shop.
pub(crate) async fn shop(role: &Role, gateway: u16) {
    let settings = server::Settings {
        url: role.url.clone(),
        gateway: format!("http://127.0.0.1:{gateway}"),
        lease: role.ttl,
        // No key is poisoned, however often its processes are killed.
        max_attempts: 1_000,
        connections: 8,
        // Long enough to kill the process during a charge.
        gateway_delay_ms: 50,
    };
    let app = server::router(&settings).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    tell(listener.local_addr().unwrap().port());
    limits::serve(
        listener,
        app.router,
        app.payments,
        Limits::default(),
        pending(),
    )
    .await;
}

/// Runs a process that claims a key, prints that, and then waits to be killed.
pub(crate) async fn claim(role: &Role) {
    let rowlock = role.connect().await;
    let once = IdempotencyLayer::new(rowlock.idempotency().lease(role.ttl), |parts: &Parts| {
        server::principal(&parts.headers)
    });
    let claimed = post(|| async {
        tell("claimed");
        pending::<()>().await;
    });
    let app = Router::new().route("/payments", claimed.layer(once));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    tell(listener.local_addr().unwrap().port());
    axum::serve(listener, app).await.unwrap();
}

async fn start(role: Role) -> (Process, u16) {
    let start = move || {
        let mut process = Process::start(&role);
        let port = process.listen().parse().unwrap();
        (process, port)
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

/// The final answer that a client got.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Answer {
    status: u16,
    content_type: String,
    body: Vec<u8>,
}

impl Answer {
    async fn of(response: reqwest::Response) -> reqwest::Result<Self> {
        let content_type = response.headers().get("content-type");
        Ok(Self {
            status: response.status().as_u16(),
            content_type: content_type
                .map_or_else(String::new, |text| text.to_str().unwrap().into()),
            body: response.bytes().await?.to_vec(),
        })
    }

    /// Whether the client is done. (A 409 with a payment: the order is paid. A 409 with a problem: the key is in
    /// flight.)
    fn is_final(&self) -> bool {
        match self.status {
            201 | 402 => true,
            409 => self.content_type == "application/json",
            _ => false,
        }
    }
}

/// Sends a payment once.
async fn send(
    client: &reqwest::Client,
    port: u16,
    key: &str,
    order: &str,
    cents: usize,
) -> reqwest::Result<reqwest::Response> {
    let body = format!(r#"{{"order_id":"{order}","amount_cents":{cents},"currency":"EUR"}}"#);
    client
        .post(format!("http://127.0.0.1:{port}/payments"))
        .bearer_auth("alice")
        .header("Idempotency-Key", format!("\"{key}\""))
        .header("Content-Type", "application/json")
        .body(body)
        .send()
        .await
}

/// The pause of a client before it tries again.
async fn pause() {
    let pause = rand::rng().random_range(5..=100);
    tokio::time::sleep(Duration::from_millis(pause)).await;
}
