//! A shop and its provider, in this process.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::common::Db;
use crate::service::gateway::{self, Entry};
use crate::service::limits::{self, Limits};
use crate::service::server::{self, Settings};

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) client: reqwest::Client,
    pub(crate) shop: String,
    provider: String,
    /// Whether the provider answers.
    pub(crate) provider_is_up: Arc<AtomicBool>,
    _dir: tempfile::TempDir,
}

/// Status, headers, and the JSON of the body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

async fn up(State(is_up): State<Arc<AtomicBool>>, request: Request, next: Next) -> Response {
    if is_up.load(Ordering::Relaxed) || request.method() == "GET" {
        return next.run(request).await;
    }
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

impl World {
    pub(crate) async fn new(db: &Db) -> Self {
        Self::with(db, Limits::default()).await
    }

    pub(crate) async fn with(db: &Db, limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let provider_is_up = Arc::new(AtomicBool::new(true));
        let provider = gateway::router(dir.path().join("gateway.db"))
            .await
            .unwrap();
        let provider = provider.layer(from_fn_with_state(Arc::clone(&provider_is_up), up));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider_url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(gateway::serve(listener, provider));
        let settings = Settings {
            url: db.url.clone(),
            gateway: provider_url.clone(),
            ..Settings::default()
        };
        let app = server::router(&settings).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shop = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(limits::serve(listener, app.router, limits, pending()));
        Self {
            client: reqwest::Client::new(),
            shop,
            provider: provider_url,
            provider_is_up,
            _dir: dir,
        }
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
        let url = format!("{}/charges", self.provider);
        let response = self.client.get(url).send().await.unwrap();
        response.json().await.unwrap()
    }
}
