//! A provider sends an event until it gets a 2xx.

use std::net::SocketAddr;
use std::time::Duration;

use inbox::signature::{HEADER, sign};
use inbox::webhook::{Webhook, routes};
use rowlock_recipes::inbox::Inbox;
use sqlx::PgPool;
use tokio::net::TcpListener;

use crate::{event, now, place};

const SECRET: &str = "whsec_test";

/// The database with the credits, and the address of the webhook.
async fn webhook() -> (rowlock_test::Db, SocketAddr) {
    let (db, inbox) = place().await;
    (db, serve(inbox).await)
}

/// The address of a webhook with this inbox.
pub(crate) async fn serve(inbox: Inbox<PgPool>) -> SocketAddr {
    let secret = SECRET.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = routes(Webhook { inbox, secret });
    tokio::spawn(async move { axum::serve(listener, routes).await });
    address
}

async fn send(address: SocketAddr, body: String, signature: Option<String>) -> u16 {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client.post(format!("http://{address}/webhooks"));
    if let Some(signature) = signature {
        request = request.header(HEADER, signature);
    }
    request.body(body).send().await.unwrap().status().as_u16()
}

pub(crate) async fn deliver(address: SocketAddr, body: String) -> u16 {
    let signature = sign(SECRET, body.as_bytes(), now());
    send(address, body, Some(signature)).await
}

#[tokio::test]
async fn an_event_is_credited_once_however_often_it_is_sent() {
    let (db, address) = webhook().await;
    let sends = (0..10).map(|n| tokio::spawn(deliver(address, event("evt_1", 500, n))));
    for sent in sends.collect::<Vec<_>>() {
        let status = sent.await.unwrap();
        // One that comes while another one is credited is sent again.
        assert!(matches!(status, 200 | 503), "{status}");
    }
    assert_eq!(deliver(address, event("evt_1", 500, 99)).await, 200);
    assert_eq!(deliver(address, event("evt_1", 501, 99)).await, 422);
    assert_eq!(deliver(address, event("evt_2", 7, 0)).await, 200);
    let credits = db.number("SELECT SUM(cents)::BIGINT FROM credit").await;
    assert_eq!(
        (credits, db.number("SELECT COUNT(*) FROM credit").await),
        (507, 2)
    );
}

#[tokio::test]
async fn a_signature_is_looked_for_in_a_few_places_only() {
    let (_db, address) = webhook().await;
    let body = event("evt_1", 500, 0);
    let signature = sign(SECRET, body.as_bytes(), now());
    let (time, ours) = signature.split_once(',').unwrap();
    let late = format!("{time},{}{ours}", "v1=00,".repeat(20));
    assert_eq!(send(address, body.clone(), Some(late)).await, 401);
    let second = format!("{time},v1=00,{ours}");
    assert_eq!(send(address, body, Some(second)).await, 200);
}

#[tokio::test]
async fn what_the_provider_has_not_signed_or_what_is_no_event_is_refused() {
    let (db, address) = webhook().await;
    let body = event("evt_1", 500, 0);
    assert_eq!(send(address, body.clone(), None).await, 401);
    for (secret, age) in [("other", 0), (SECRET, 3_600)] {
        let at = now() - Duration::from_secs(age);
        let signature = sign(secret, body.as_bytes(), at);
        assert_eq!(send(address, body.clone(), Some(signature)).await, 401);
    }
    for body in ["", "{}", r#"{"id":"evt_1","data":{"account":"ann"}}"#] {
        assert_eq!(deliver(address, body.into()).await, 400, "{body}");
    }
    assert_eq!(db.number("SELECT COUNT(*) FROM credit").await, 0);
}

#[tokio::test]
async fn an_event_that_cannot_be_credited_now_is_asked_for_again() {
    let (db, address) = webhook().await;
    db.execute("ALTER TABLE credit RENAME TO away").await;
    assert_eq!(deliver(address, event("evt_1", 500, 0)).await, 503);
    db.execute("ALTER TABLE away RENAME TO credit").await;
    assert_eq!(deliver(address, event("evt_1", 500, 1)).await, 200);
    assert_eq!(db.number("SELECT COUNT(*) FROM credit").await, 1);
}
