//! SIGTERM, while a hundred payments run in a process of their own.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Json, Router};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use payments::gateway::{Charge, Charged};
use rowlock_test::{Db, eventually, on_every_engine};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Notify;

const PAYMENTS: usize = 100;

/// How long the server may take to stop.
const STOP: Duration = Duration::from_secs(8);

/// A provider that charges at once, and answers late.
#[derive(Default)]
struct Provider {
    /// What was charged: a key is charged once.
    charged: Mutex<HashSet<String>>,
    /// Who asked.
    asked: Mutex<usize>,
    /// Orders with an even number get their answers.
    answers: AtomicBool,
    /// All orders do.
    is_well: AtomicBool,
    news: Notify,
}

impl Provider {
    fn asked(&self) -> usize {
        *self.asked.lock().unwrap()
    }

    fn charged(&self) -> usize {
        self.charged.lock().unwrap().len()
    }

    fn set(&self, what: &AtomicBool) {
        what.store(true, Ordering::SeqCst);
        self.news.notify_waiters();
    }
}

async fn charge(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    Json(charge): Json<Charge>,
) -> Json<Charged> {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    provider.charged.lock().unwrap().insert(key.clone());
    *provider.asked.lock().unwrap() += 1;
    let order: usize = charge
        .reference
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()
        .unwrap()
        .parse()
        .unwrap();
    loop {
        let news = provider.news.notified();
        let is_even = order.is_multiple_of(2) && provider.answers.load(Ordering::SeqCst);
        if is_even || provider.is_well.load(Ordering::SeqCst) {
            break;
        }
        news.await;
    }
    Json(Charged {
        charge_id: key,
        status: "captured".into(),
    })
}

/// A payment server in a process of its own.
struct Shop {
    process: Child,
    url: String,
}

impl Shop {
    fn start(db: &Db, gateway: &str) -> Self {
        let mut shop = Command::new(env!("CARGO_BIN_EXE_payments"));
        shop.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--url",
            &db.url,
            "--gateway",
            gateway,
        ]);
        shop.args(["--stop-seconds", &STOP.as_secs().to_string()]);
        let mut process = shop.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let url = line.strip_prefix("payments on ").unwrap().to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, url }
    }

    fn tell_to_stop(&self) {
        let id = Pid::from_raw(self.process.id().try_into().unwrap());
        kill(id, Signal::SIGTERM).unwrap();
    }

    async fn pay(url: String, order: usize) -> Option<u16> {
        let body = json!({ "order_id": order.to_string(), "amount_cents": 500, "currency": "EUR" });
        let request = reqwest::Client::new()
            .post(format!("{url}/payments"))
            .bearer_auth("alice");
        let request = request
            .header("Idempotency-Key", format!("\"key-{order}\""))
            .json(&body);
        request
            .send()
            .await
            .ok()
            .map(|response| response.status().as_u16())
    }
}

on_every_engine! {
    async fn every_payment_that_runs_at_a_sigterm_is_recorded_or_is_finished_by_its_retry(db: &Db) {
        let provider = Arc::new(Provider::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = format!("http://{}", listener.local_addr().unwrap());
        let charges = Router::new().route("/charges", post(charge)).with_state(Arc::clone(&provider));
        tokio::spawn(async move { axum::serve(listener, charges).await });
        let mut shop = Shop::start(db, &gateway);
        let pay = |order| tokio::spawn(Shop::pay(shop.url.clone(), order));
        let running: Vec<_> = (0..PAYMENTS).map(pay).collect();
        eventually("all run", async || provider.asked() == PAYMENTS).await;
        shop.tell_to_stop();
        provider.set(&provider.answers);
        let mut paid = 0;
        for (order, running) in running.into_iter().enumerate() {
            let status = running.await.unwrap();
            paid += usize::from(status == Some(201));
            assert!(order % 2 == 1 || status == Some(201), "{order}: {status:?}");
        }
        assert_eq!(paid, PAYMENTS / 2, "only those whose answers had come");
        assert_eq!(shop.process.wait().unwrap().code(), Some(1), "it says that it was cut off");
        let records = async |state: &str| {
            db.number(&format!("SELECT COUNT(*) FROM rowlock_idempotency WHERE state = '{state}'")).await
        };
        let half = i64::try_from(PAYMENTS / 2).unwrap();
        assert_eq!((records("done").await, records("free").await), (half, half));
        assert_eq!(db.number("SELECT COUNT(*) FROM order_payment").await, half);

        // The clients send again.
        provider.set(&provider.is_well);
        let mut shop = Shop::start(db, &gateway);
        let pay = |order| tokio::spawn(Shop::pay(shop.url.clone(), order));
        let again: Vec<_> = (0..PAYMENTS).map(pay).collect();
        for again in again {
            assert_eq!(again.await.unwrap(), Some(201));
        }
        assert_eq!(provider.charged(), PAYMENTS, "each order is charged once");
        assert_eq!(db.number("SELECT COUNT(*) FROM order_payment").await, 2 * half);
        shop.tell_to_stop();
        assert_eq!(shop.process.wait().unwrap().code(), Some(0));
    }
}
