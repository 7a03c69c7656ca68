//! A shop and its provider, in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use rowlock_test::Db;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use payments::gateway::{self, Entry};
use payments::limits::{self, Limits};
use payments::server::{self, Settings};

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) client: reqwest::Client,
    pub(crate) shop: String,
    provider_url: String,
    pub(crate) provider: Arc<Provider>,
    /// Dropping it stops the shop.
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<bool>>,
    _dir: tempfile::TempDir,
}

/// The state of the provider.
#[derive(Debug)]
pub(crate) struct Provider {
    /// Whether it answers.
    pub(crate) is_up: AtomicBool,
    /// Whether it delays a charge: it notifies `asked`, and waits for `goes_on`.
    pub(crate) is_slow: AtomicBool,
    pub(crate) asked: Notify,
    pub(crate) goes_on: Notify,
}

/// Status, headers, and the JSON of the body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

async fn ask(State(it): State<Arc<Provider>>, request: Request, next: Next) -> Response {
    if request.method() != "GET" {
        if it.is_slow.load(Ordering::Relaxed) {
            it.asked.notify_one();
            it.goes_on.notified().await;
        }
        if !it.is_up.load(Ordering::Relaxed) {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
    }
    next.run(request).await
}

impl World {
    pub(crate) async fn new(db: &Db) -> Self {
        Self::with(db, Limits::default()).await
    }

    pub(crate) async fn with(db: &Db, limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let provider = Arc::new(Provider {
            is_up: AtomicBool::new(true),
            is_slow: AtomicBool::new(false),
            asked: Notify::new(),
            goes_on: Notify::new(),
        });
        let gateway = gateway::router(dir.path().join("gateway.db"))
            .await
            .unwrap();
        let gateway = gateway.layer(from_fn_with_state(Arc::clone(&provider), ask));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider_url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(gateway::serve(listener, gateway));
        let settings = Settings {
            url: db.url.clone(),
            gateway: provider_url.clone(),
            ..Settings::default()
        };
        let app = server::router(&settings).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shop = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let stopped = async { drop(stopped.await) };
        let serving = limits::serve(listener, app.router, app.payments, limits, stopped);
        Self {
            client: reqwest::Client::new(),
            shop,
            provider_url,
            provider,
            stop: Some(stop),
            serving: Some(tokio::spawn(serving)),
            _dir: dir,
        }
    }

    /// Tells the shop to stop. The task returns whether the shop has finished everything.
    pub(crate) fn stop(&mut self) -> JoinHandle<bool> {
        self.stop.take();
        self.serving.take().unwrap()
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.unwrap();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Answer {
            status,
            headers,
            body,
        }
    }

    pub(crate) async fn pay(&self, key: &str, order: &str, cents: i64) -> Answer {
        let body = json!({ "order_id": order, "amount_cents": cents, "currency": "EUR" });
        let url = format!("{}/payments", self.shop);
        let request = self.client.post(url).bearer_auth("alice");
        let request = request.header("Idempotency-Key", format!("\"{key}\""));
        self.send(request.json(&body)).await
    }

    pub(crate) async fn payments(&self) -> Vec<Value> {
        let url = format!("{}/payments", self.shop);
        let answer = self.send(self.client.get(url).bearer_auth("alice")).await;
        answer.body.as_array().unwrap().clone()
    }

    /// The provider's books.
    pub(crate) async fn charges(&self) -> Vec<Entry> {
        let url = format!("{}/charges", self.provider_url);
        let response = self.client.get(url).send().await.unwrap();
        response.json().await.unwrap()
    }
}
