//! Consumers of a real broker, which are killed again and again.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use inbox::consumer::{dead_letters, declare};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;
use rand::seq::SliceRandom;
use rowlock_test::{Own, eventually, patience};

use crate::{event, place, webhooks};

const QUEUE: &str = "events";
const CONSUMERS: usize = 2;

/// A consumer is killed so often.
const KILLS: Duration = Duration::from_millis(200);

/// How many messages there are.
fn messages() -> usize {
    let given = std::env::var("ROWLOCK_INBOX_MESSAGES");
    given.map_or(1_000, |given| given.parse().expect("a number of messages"))
}

fn consumer(amqp: &str, database: &str) -> Child {
    let mut consumer = Command::new(env!("CARGO_BIN_EXE_consumer"));
    consumer.args(["--amqp", amqp, "--database", database, "--queue", QUEUE]);
    consumer.stdout(Stdio::null()).spawn().unwrap()
}

async fn publish(channel: &Channel, body: String) {
    let published = channel.basic_publish(
        "".into(),
        QUEUE.into(),
        BasicPublishOptions::default(),
        body.as_bytes(),
        BasicProperties::default().with_delivery_mode(2),
    );
    published.await.unwrap().await.unwrap();
}

/// How many messages wait in a queue, and how many consumers it has.
async fn seen(channel: &Channel, queue: &str) -> (u32, usize) {
    let passive = QueueDeclareOptions {
        passive: true,
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(queue.into(), passive, FieldTable::default());
    let declared = declared.await.unwrap();
    (declared.message_count(), declared.consumer_count() as usize)
}

async fn waiting(channel: &Channel, queue: &str) -> u32 {
    seen(channel, queue).await.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_is_credited_once_though_consumers_are_killed_in_the_middle() {
    let broker = Own::start("rabbitmq", &[]);
    let (db, inbox) = place().await;
    let connection = Connection::connect(&broker.url, ConnectionProperties::default());
    let connection = connection.await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .unwrap();
    declare(&channel, QUEUE).await.unwrap();
    let count = messages();
    let mut bodies: Vec<String> = Vec::new();
    for n in 0..count {
        for delivery in 0..rand::rng().random_range(1..=4) {
            bodies.push(event(&format!("evt_{n}"), 1, delivery));
        }
    }
    bodies.shuffle(&mut rand::rng());
    let sent = bodies.len();
    for chunk in bodies.chunks(500) {
        let publishing = chunk.iter().map(|body| publish(&channel, body.clone()));
        futures_util::future::join_all(publishing).await;
    }
    publish(&channel, "no event".into()).await;

    let mut consumers: Vec<Child> = (0..CONSUMERS)
        .map(|_| consumer(&broker.url, &db.url))
        .collect();
    let (began, mut kills) = (Instant::now(), 0_usize);
    let credited = async || db.number("SELECT COUNT(DISTINCT event) FROM credit").await;
    while usize::try_from(credited().await).unwrap() < count || waiting(&channel, QUEUE).await > 0 {
        assert!(began.elapsed() < 5 * patience(), "the queue is never empty");
        tokio::time::sleep(KILLS).await;
        let killed = &mut consumers[kills % CONSUMERS];
        killed.kill().unwrap();
        killed.wait().unwrap();
        *killed = consumer(&broker.url, &db.url);
        kills += 1;
    }
    // What the killed ones had is delivered to these, which end in good order.
    eventually("they consume, and the queue is empty", async || {
        seen(&channel, QUEUE).await == (0, CONSUMERS)
    })
    .await;
    for consumer in &mut consumers {
        let id = Pid::from_raw(consumer.id().try_into().unwrap());
        kill(id, Signal::SIGTERM).unwrap();
        assert!(consumer.wait().unwrap().success());
    }
    assert_eq!(
        waiting(&channel, QUEUE).await,
        0,
        "nothing is left unacknowledged"
    );
    assert_eq!(
        waiting(&channel, &dead_letters(QUEUE)).await,
        1,
        "what is no event"
    );
    // The webhook is another way for the same events.
    let address = webhooks::serve(inbox).await;
    assert_eq!(webhooks::deliver(address, event("evt_0", 1, 9)).await, 200);
    let credits = db.number("SELECT COUNT(*) FROM credit").await;
    assert_eq!(
        usize::try_from(credits).unwrap(),
        count,
        "each event is credited once"
    );
    println!(
        "{count} messages in {sent} deliveries, {kills} kills: {credits} credits, in {:?}",
        began.elapsed()
    );
}
