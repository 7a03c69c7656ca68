//! What counts of a request, by the settings of a layer.

use std::pin::pin;

use http::{Request, Uri};
use rowlock::{Idempotency, Rowlock};

use super::*;
use crate::collect::collect;
use crate::layer::IdempotencyLayer;

const BODY: &str = r#"{"cents":100}"#;

async fn fingerprint(layer: IdempotencyLayer) -> Fingerprint {
    let request = Request::post("/pay?x=1").header(CONTENT_TYPE, "application/json");
    let (head, ()) = request.body(()).unwrap().into_parts();
    let body = collect(pin!(BODY.to_owned()), 1_000).await.unwrap();
    let received = Received::new(head, body.bytes.clone());
    of(&received, &body, &layer.into_settings()).await.unwrap()
}

fn layer(idempotency: &Idempotency) -> IdempotencyLayer {
    IdempotencyLayer::new(idempotency.clone(), |_: &Parts| Some("ann"))
}

#[tokio::test]
async fn a_setting_adds_nothing_where_a_request_has_nothing_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/test.db?mode=rwc", dir.path().display());
    let idempotency = Rowlock::connect(&url).await.unwrap().idempotency();
    let before = fingerprint(layer(&idempotency)).await;
    for (name, same) in [
        (
            "headers_count",
            layer(&idempotency).headers_count(["api-version"]),
        ),
        ("host_counts", layer(&idempotency).host_counts(true)),
        ("uri", layer(&idempotency).uri(|head| head.uri.clone())),
        (
            "json_only",
            layer(&idempotency).json_only(["$.none", "$.a.none"]),
        ),
    ] {
        assert_eq!(fingerprint(same).await, before, "{name}");
    }
    for (name, other) in [
        (
            "headers_count",
            layer(&idempotency).headers_count(["content-type"]),
        ),
        ("uri", layer(&idempotency).uri(|_| Uri::from_static("/pay"))),
        ("json_only", layer(&idempotency).json_only(["$.cents"])),
        ("json_except", layer(&idempotency).json_except(["$.none"])),
    ] {
        assert_ne!(fingerprint(other).await, before, "{name}");
    }
}
