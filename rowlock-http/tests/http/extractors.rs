//! The principal by an extractor of axum: it is asked where a key is needed, and its refusal or panic is an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::post;
use rowlock::Engine;
use rowlock_http::IdempotencyLayer;
use rowlock_test::Db;
use tokio::net::TcpListener;

/// The user of the header `user`, and how often anybody was looked up.
struct User(String);

#[derive(Clone, Default)]
struct LookUps(Arc<AtomicU32>);

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let lookups = parts.extensions.get::<LookUps>().unwrap();
        lookups.0.fetch_add(1, Ordering::Relaxed);
        let user = parts
            .headers
            .get("user")
            .and_then(|user| user.to_str().ok());
        assert_ne!(user, Some("panics"), "as was asked");
        Ok(Self(
            user.ok_or((StatusCode::FORBIDDEN, "log in first"))?.into(),
        ))
    }
}

struct Shop {
    db: Db,
    url: String,
    lookups: LookUps,
    work: Arc<AtomicU32>,
}

impl Shop {
    async fn new(set: impl Fn(IdempotencyLayer) -> IdempotencyLayer) -> Self {
        let db = Db::new(Engine::Sqlite).await;
        let idempotency = db.rowlock().await.idempotency();
        let (lookups, work) = (LookUps::default(), Arc::new(AtomicU32::new(0)));
        let layer = set(IdempotencyLayer::from_extractor(
            idempotency,
            |user: User| user.0,
        ));
        let handler = {
            let work = Arc::clone(&work);
            move || async move { (work.fetch_add(1, Ordering::Relaxed) + 1).to_string() }
        };
        let extension = axum::Extension(lookups.clone());
        let router = Router::new()
            .route("/", post(handler))
            .layer(layer)
            .layer(extension);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            db,
            url,
            lookups,
            work,
        }
    }

    /// The status, the body, and how often users were looked up and the handler was called, up to now.
    async fn post(&self, headers: &[(&str, &str)]) -> (u16, String, [u32; 2]) {
        let mut request = reqwest::Client::new().post(&self.url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        let counts = [&self.lookups.0, &self.work].map(|count| count.load(Ordering::Relaxed));
        (status, text, counts)
    }
}

const KEY: (&str, &str) = ("idempotency-key", "k");

#[tokio::test]
async fn a_user_who_is_refused_or_empty_does_no_work() {
    let shop = Shop::new(|layer| layer).await;
    let (status, text, counts) = shop.post(&[KEY]).await;
    assert_eq!(
        (status, text.as_str(), counts),
        (403, "log in first", [1, 0])
    );
    let (status, text, _) = shop.post(&[KEY, ("user", "")]).await;
    assert_eq!(
        (status, text.contains("no-principal")),
        (401, true),
        "{text}"
    );
    for _ in 0..2 {
        let (status, text, _) = shop.post(&[KEY, ("user", "ann")]).await;
        assert_eq!((status, text.as_str()), (200, "1"));
    }
    let (_, text, counts) = shop.post(&[KEY, ("user", "bob")]).await;
    assert_eq!((text.as_str(), counts[1]), ("2", 2));
    shop.db.remove().await;
}

#[tokio::test]
async fn an_extractor_that_panics_refuses_the_request() {
    let shop = Shop::new(|layer| layer).await;
    let (status, text, counts) = shop.post(&[KEY, ("user", "panics")]).await;
    assert_eq!((status, counts), (500, [1, 0]), "{text}");
    let (status, _, _) = shop.post(&[KEY, ("user", "ann")]).await;
    assert_eq!(status, 200);
    shop.db.remove().await;
}

#[tokio::test]
async fn nobody_is_looked_up_for_a_request_without_a_key() {
    let shop = Shop::new(|layer| layer).await;
    let (status, text, counts) = shop.post(&[]).await;
    assert_eq!((status, counts), (400, [0, 0]), "{text}");
    let (status, _, counts) = shop.post(&[("idempotency-key", "\"half")]).await;
    assert_eq!((status, counts), (400, [0, 0]));
    shop.db.remove().await;

    let shop = Shop::new(|layer| layer.required(false)).await;
    let (status, _, counts) = shop.post(&[]).await;
    assert_eq!((status, counts), (200, [0, 1]));
    shop.db.remove().await;
}
