//! What stands in the log about a request.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use rowlock_http::IdempotencyLayer;
use tower_service::Service;
use tracing_subscriber::fmt::MakeWriter;

use crate::client;

/// The log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines(&self, with: &str) -> Vec<String> {
        let text = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let text = String::from_utf8(text).unwrap();
        let lines = text.lines().filter(|line| line.contains(with));
        lines.map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn the_span_of_a_request_tells_its_record_its_attempt_and_what_became_of_it() {
    let (_alone, _db, rowlock) = client().await;
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);
    let layer = IdempotencyLayer::new(rowlock.idempotency(), |_| Some("ann"));
    let pay = async || {
        tracing::info!("the handler runs");
        "paid"
    };
    let mut app: Router = Router::new().route("/", post(pay)).layer(layer);
    for body in ["100", "100", "101"] {
        let request = Request::post("/").header("idempotency-key", "\"k\"");
        let request = request.body(Body::from(body)).unwrap();
        app.call(request).await.unwrap();
    }
    let record = r#"idempotent request{rowlock.record="k" of "http:ann" rowlock.outcome="new" rowlock.attempt="#;
    let handler = log.lines("the handler runs");
    assert!(
        handler.len() == 1 && handler[0].contains(record),
        "{handler:?}"
    );
    for (outcome, level) in [
        ("new", "DEBUG"),
        ("replayed", "DEBUG"),
        ("mismatch", "INFO"),
    ] {
        let told = log.lines(&format!("outcome=\"{outcome}\""));
        let told: Vec<_> = told
            .iter()
            .filter(|line| line.contains("a request for a key"))
            .collect();
        assert!(
            told.len() == 1 && told[0].contains(level),
            "{outcome}: {told:?}"
        );
        assert!(told[0].contains("record=\"k\" of \"http:ann\""), "{told:?}");
    }
}
