//! Stripe's own package for Python, against a server of ours with the layer: `client.py` has what it does.
#![allow(missing_docs, reason = "tests are named, not documented")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use rowlock::Engine;
use rowlock_http::IdempotencyLayer;
use rowlock_test::Db;
use serde_json::json;
use tokio::net::TcpListener;

/// A Python that has the package; `docker/servers.sh` gets it. If it cannot, the test fails.
fn python() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docker/servers.sh");
    let output = Command::new(script).arg("stripe").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "no package stripe: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Pays, as far as this server knows.
async fn pay(State(payments): State<Arc<AtomicU32>>, form: String) -> Response {
    if form.contains("description=declined") {
        let error =
            json!({"error": {"type": "card_error", "code": "card_declined", "message": "no"}});
        return (StatusCode::PAYMENT_REQUIRED, Json(error)).into_response();
    }
    if form.contains("description=slow") {
        // Longer than the client waits.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let amount = form
        .split('&')
        .find_map(|field| field.strip_prefix("amount="));
    let amount: u32 = amount.unwrap().parse().unwrap();
    let number = payments.fetch_add(1, Ordering::Relaxed);
    let id = format!("pi_{number}");
    Json(json!({"id": id, "object": "payment_intent", "amount": amount})).into_response()
}

async fn stripes_package_is_served(engine: Engine) {
    let db = Db::new(engine).await;
    let rowlock = db.rowlock().await;
    let payments = Arc::new(AtomicU32::new(0));
    let merchant = |request: &axum::http::request::Parts| {
        let key = request.headers.get("authorization")?;
        key.to_str().ok().map(str::to_owned)
    };
    let layer = IdempotencyLayer::new(rowlock.idempotency(), merchant);
    let router = Router::new()
        .route("/v1/payment_intents", post(pay))
        .route_layer(layer)
        .with_state(Arc::clone(&payments));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });

    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stripe/client.py");
    let run = move || {
        Command::new(python())
            .arg(client)
            .arg(url)
            .output()
            .unwrap()
    };
    let ran = tokio::task::spawn_blocking(run).await.unwrap();
    let (said, failed) = (
        String::from_utf8_lossy(&ran.stdout).into_owned(),
        String::from_utf8_lossy(&ran.stderr).into_owned(),
    );
    assert!(
        ran.status.success() && said.contains("all passed"),
        "{said}{failed}"
    );
    // Two without a key of the caller's, one each for the other three keys.
    assert_eq!(payments.load(Ordering::Relaxed), 5);
    serving.abort();
    assert_eq!(rowlock.shutdown(rowlock_test::patience()).await, []);
    db.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stripes_package_is_served_on_sqlite() {
    stripes_package_is_served(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stripes_package_is_served_on_postgres() {
    stripes_package_is_served(Engine::Postgres).await;
}
