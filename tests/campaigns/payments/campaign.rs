//! Four processes of the shop, one of them killed with SIGKILL every 200 ms and started again. The clients pay each
//! order under two keys, send each key 10 times at the same time, and go on until they have an answer.
//!
//! `ROWLOCK_FAULT_KEYS` (default 20) is the number of orders.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use rowlock::Engine;
use rowlock_test::{Db, Process, patience};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::judge::judge;
use super::{Answer, LEASE, pause, send, start};
use crate::role::{Part, Role};
use payments::database::Payment;
use payments::gateway::Entry;

const SHOPS: usize = 4;
/// Keys under which each order is paid.
pub(super) const KEYS: usize = 2;
/// Clients of each key.
const SUBMITS: usize = 10;
/// Orders that are paid at the same time.
const AT_A_TIME: usize = 8;
const STRIKE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(1_500);

pub(super) fn orders() -> usize {
    std::env::var("ROWLOCK_FAULT_KEYS").map_or(20, |text| text.parse().expect("a number"))
}

/// The provider declines amounts that end in 13.
pub(super) const DECLINED: usize = 13;

/// The amount under a key. Of ten orders, one is declined under both keys, one under the first key only, and one is
/// paid with two amounts.
pub(super) fn cents(order: usize, key: usize) -> usize {
    let whole = 1_000 + order * 100;
    match (order % 10, key) {
        (3, _) | (5, 0) => whole + DECLINED,
        (7, key) => whole + key,
        _ => whole,
    }
}

#[derive(Debug)]
struct Town {
    client: reqwest::Client,
    shops: [AtomicU16; SHOPS],
    sent: AtomicU64,
    replayed: AtomicU64,
}

impl Town {
    /// Sends a payment until there is an answer.
    async fn pay(&self, order: usize, key: usize) -> Answer {
        let cents = cents(order, key);
        let (name, key) = (
            format!("order {order}"),
            format!("order {order}, key {key}"),
        );
        let until = Instant::now() + patience();
        loop {
            let shop = rand::rng().random_range(0..SHOPS);
            let port = self.shops[shop].load(Ordering::Relaxed);
            self.sent.fetch_add(1, Ordering::Relaxed);
            if let Ok(response) = send(&self.client, port, &key, &name, cents).await {
                let replayed = response.headers().contains_key("idempotent-replayed");
                if let Ok(answer) = Answer::of(response).await {
                    if answer.is_final() {
                        let replays = u64::from(replayed);
                        self.replayed.fetch_add(replays, Ordering::Relaxed);
                        return answer;
                    }
                    assert!(matches!(answer.status, 409 | 500 | 503), "{answer:?}");
                    assert!(Instant::now() < until, "{key}: {answer:?}");
                }
            }
            pause().await;
        }
    }
}

/// Kills one process of the shop after each interval, and starts it again. Stops another process for longer than its
/// lease.
async fn strike(
    mut shops: Vec<Process>,
    shop: Role,
    town: Arc<Town>,
    over: Arc<AtomicBool>,
) -> (u32, u32, Vec<Process>) {
    let (mut kills, mut pauses) = (0, 0);
    let mut strikes = tokio::time::interval(STRIKE);
    let mut stopped = 0;
    // A separate task ends the pause: a process that is stopped with a lock keeps others from starting.
    let mut pause = tokio::spawn(async {});
    while !over.load(Ordering::Relaxed) {
        strikes.tick().await;
        if pause.is_finished() {
            stopped = rand::rng().random_range(0..SHOPS);
            pause = tokio::spawn(shops[stopped].pause(PAUSE));
            pauses += 1;
        }
        let others = rand::rng().random_range(1..SHOPS);
        let at = (stopped + others) % SHOPS;
        shops[at].kill();
        kills += 1;
        let (process, port) = start(shop.clone()).await;
        town.shops[at].store(port, Ordering::Relaxed);
        shops[at] = process;
    }
    pause.await.unwrap();
    (kills, pauses, shops)
}

/// The answers that the clients of each order and key got.
pub(super) type Told = HashMap<(usize, usize), HashSet<Answer>>;

/// Pays every order under all its keys, many times at the same time, and collects the answers.
async fn submit_all(town: &Arc<Town>) -> Told {
    let answers: Arc<Mutex<Told>> = Arc::default();
    let next = Arc::new(AtomicUsize::new(0));
    let mut lines = JoinSet::new();
    for _ in 0..AT_A_TIME {
        let (town, next, answers) = (Arc::clone(town), Arc::clone(&next), Arc::clone(&answers));
        lines.spawn(async move {
            loop {
                let order = next.fetch_add(1, Ordering::Relaxed);
                if order >= orders() {
                    return;
                }
                let mut submits = JoinSet::new();
                for submit in 0..KEYS * SUBMITS {
                    let (town, key) = (Arc::clone(&town), submit % KEYS);
                    submits.spawn(async move { (key, town.pay(order, key).await) });
                }
                for (key, told) in submits.join_all().await {
                    let mut answers = answers.lock().unwrap();
                    answers.entry((order, key)).or_default().insert(told);
                }
            }
        });
    }
    while let Some(line) = lines.join_next().await {
        line.unwrap();
    }
    Arc::into_inner(answers).unwrap().into_inner().unwrap()
}

pub(crate) async fn run(engine: Engine) {
    let db = Db::new(engine).await;
    let books = tempfile::tempdir().unwrap();
    let role = |part, url: String| Role {
        part,
        url,
        ttl: LEASE,
    };
    let file = books.path().join("gateway.db").display().to_string();
    let (_provider, gateway) = start(role(Part::Gateway, file)).await;
    let shop = role(Part::Shop { gateway }, db.url.clone());
    let mut shops = Vec::new();
    let town = Arc::new(Town {
        client: reqwest::Client::builder()
            .timeout(Duration::from_secs(20))
            .build()
            .unwrap(),
        shops: Default::default(),
        sent: AtomicU64::new(0),
        replayed: AtomicU64::new(0),
    });
    for at in 0..SHOPS {
        let (process, port) = start(shop.clone()).await;
        town.shops[at].store(port, Ordering::Relaxed);
        shops.push(process);
    }

    let over = Arc::new(AtomicBool::new(false));
    let strikes = tokio::spawn(strike(shops, shop, Arc::clone(&town), Arc::clone(&over)));
    let answers = submit_all(&town).await;
    over.store(true, Ordering::Relaxed);
    let (kills, pauses, _shops) = strikes.await.unwrap();

    let books = format!("http://127.0.0.1:{gateway}/charges");
    let charges = town.client.get(books).send().await.unwrap();
    let charges: Vec<Entry> = charges.json().await.unwrap();
    let payments = format!(
        "http://127.0.0.1:{}/payments",
        town.shops[0].load(Ordering::Relaxed)
    );
    let payments = town.client.get(payments).bearer_auth("alice");
    let payments: Vec<Payment> = payments.send().await.unwrap().json().await.unwrap();
    judge(&answers, &charges, &payments);
    println!(
        "payments {engine}: {} orders under {KEYS} keys each, {} submits, {} requests, {} replays, {kills} kills, {pauses} pauses; \
         {} charges, {} payments",
        orders(),
        orders() * KEYS * SUBMITS,
        town.sent.load(Ordering::Relaxed),
        town.replayed.load(Ordering::Relaxed),
        charges.len(),
        payments.len(),
    );
    assert!(kills > 0, "no process was killed");
    db.remove().await;
}
