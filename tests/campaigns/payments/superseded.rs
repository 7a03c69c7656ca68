//! An attempt that learns after its charge that another process took it over.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::routing::post;
use nix::sys::signal::Signal;
use rowlock::Engine;
use rowlock_test::{Db, patience};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{Answer, LEASE, pause, send, start};
use crate::role::{Part, Role};
use payments::gateway::Entry;

/// A provider that charges, and holds its answers until the test lets them go.
#[derive(Debug)]
struct Gate {
    gateway: u16,
    client: reqwest::Client,
    charged: Semaphore,
    answers: Semaphore,
}

impl Gate {
    /// Serves in the background, on the port that it returns.
    async fn start(gateway: u16) -> (Arc<Self>, u16) {
        let gate = Arc::new(Self {
            gateway,
            client: reqwest::Client::new(),
            charged: Semaphore::new(0),
            answers: Semaphore::new(0),
        });
        let app = Router::new().route("/charges", post(Self::charge));
        let app = app.with_state(Arc::clone(&gate));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, app).await });
        (gate, port)
    }

    async fn charge(
        State(gate): State<Arc<Self>>,
        headers: HeaderMap,
        body: Bytes,
    ) -> impl IntoResponse {
        let charge = gate
            .client
            .post(format!("http://127.0.0.1:{}/charges", gate.gateway))
            .header("Idempotency-Key", &headers["idempotency-key"])
            .header("Content-Type", "application/json")
            .body(body);
        let answer = Answer::of(charge.send().await.unwrap()).await.unwrap();
        gate.charged.add_permits(1);
        gate.answers.acquire().await.unwrap().forget();
        let status = axum::http::StatusCode::from_u16(answer.status).unwrap();
        (status, [("content-type", answer.content_type)], answer.body)
    }
}

/// A process is stopped in the middle of its charge. A second process takes the attempt over, and dies right after its
/// claim. The first process wakes, and learns that its attempt is superseded. Then a client pays the same order under
/// another key.
pub(crate) async fn superseded(engine: Engine) {
    let db = Db::new(engine).await;
    let books = tempfile::tempdir().unwrap();
    let role = |part, url: &str| Role {
        part,
        url: url.into(),
        ttl: LEASE,
    };
    let file = books.path().join("gateway.db").display().to_string();
    let (_provider, books) = start(role(Part::Gateway, &file)).await;
    let (gate, gateway) = Gate::start(books).await;
    let (stopped, its_port) = start(role(Part::Shop { gateway }, &db.url)).await;
    let (mut dies, dying_port) = start(role(Part::Claim, &db.url)).await;
    let client = reqwest::Client::new();

    let first = {
        let client = client.clone();
        tokio::spawn(async move { send(&client, its_port, "first", "order", 500).await })
    };
    gate.charged.acquire().await.unwrap().forget();
    stopped.signal(Signal::SIGSTOP);
    let insist = {
        let client = client.clone();
        tokio::spawn(async move {
            while let Ok(response) = send(&client, dying_port, "first", "order", 500).await {
                assert_eq!(response.status(), 409, "in flight, until its lease is over");
                pause().await;
            }
        })
    };
    let dead = tokio::task::spawn_blocking(move || {
        assert_eq!(dies.listen(), "claimed");
        dies.kill();
    });
    dead.await.unwrap();
    insist.await.unwrap();
    gate.answers.add_permits(100);
    stopped.signal(Signal::SIGCONT);
    assert_eq!(first.await.unwrap().unwrap().status(), 503, "superseded");

    let mut told = Vec::new();
    for key in ["second", "first"] {
        let until = Instant::now() + patience();
        let answer = loop {
            let sent = send(&client, its_port, key, "order", 500).await.unwrap();
            let answer = Answer::of(sent).await.unwrap();
            if answer.is_final() {
                break answer;
            }
            assert!(Instant::now() < until, "{key}: {answer:?}");
            pause().await;
        };
        told.push((answer.status, answer.body));
    }
    let charges = client.get(format!("http://127.0.0.1:{books}/charges"));
    let charges: Vec<Entry> = charges.send().await.unwrap().json().await.unwrap();
    assert_eq!(charges.len(), 1, "{charges:?}");
    assert_eq!(told[0].1, told[1].1, "the same payment");
    assert_eq!((told[0].0, told[1].0), (409, 201), "it is the first key's");
    db.remove().await;
}
