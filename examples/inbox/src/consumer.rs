//! The consumer of a queue of RabbitMQ.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery as Message;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection};
use rowlock_recipes::inbox::{Inbox, Reply};
use sqlx::PgPool;

use crate::{Event, credit};

/// The most deliveries of a message: about a quarter of an hour of them, because a database that takes no writes fails
/// each one at once.
const DELIVERIES: i32 = 10_000;

/// How long a message waits before it is delivered again.
const PAUSE: Duration = Duration::from_millis(100);

/// How many messages the consumer has at a time, and works on at the same time.
const AT_ONCE: u16 = 16;

/// The queue, and the one for the messages that are put aside: unreadable ones, and those with another payload under a
/// used id.
///
/// # Errors
///
/// Those of the broker.
pub async fn declare(channel: &Channel, queue: &str) -> lapin::Result<()> {
    let dead = dead_letters(queue);
    let durable = QueueDeclareOptions::durable();
    let no_arguments = FieldTable::default();
    channel
        .queue_declare(dead.as_str().into(), durable, no_arguments)
        .await?;
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("quorum".into()),
    );
    // A message that can never be credited is put aside in the end.
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(DELIVERIES));
    arguments.insert(
        "x-dead-letter-exchange".into(),
        AMQPValue::LongString("".into()),
    );
    arguments.insert(
        "x-dead-letter-routing-key".into(),
        AMQPValue::LongString(dead.into()),
    );
    channel
        .queue_declare(queue.into(), durable, arguments)
        .await?;
    Ok(())
}

/// The queue of the messages of `queue` that were put aside.
#[must_use]
pub fn dead_letters(queue: &str) -> String {
    format!("{queue}.dead")
}

/// Credits the events of the queue until the connection ends, or `stop` resolves.
///
/// # Errors
///
/// Those of the broker. What was not acknowledged is delivered again.
pub async fn run(
    connection: &Connection,
    queue: &str,
    inbox: &Inbox<PgPool>,
    stop: impl Future<Output = ()>,
) -> lapin::Result<()> {
    let channel = connection.create_channel().await?;
    channel
        .basic_qos(AT_ONCE, BasicQosOptions::default())
        .await?;
    declare(&channel, queue).await?;
    let messages = channel.basic_consume(
        queue.into(),
        "".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let receive = |message| async move {
        let message: Message = message?;
        answer(&message, reply_to(inbox, &message).await).await
    };
    let messages = messages.await?.take_until(stop).map(receive);
    let mut answered = pin!(messages.buffer_unordered(AT_ONCE.into()));
    while let Some(answered) = answered.next().await {
        answered?;
    }
    // Otherwise the end of the connection meets the channel while it is closing by itself, and fails.
    channel.close(200, "done".into()).await
}

async fn reply_to(inbox: &Inbox<PgPool>, message: &Message) -> Reply {
    match Event::of(&message.data) {
        Ok(event) => {
            let delivery = credit(inbox, &event).await;
            tracing::debug!(event = &*event.id, ?delivery, "a message");
            delivery.reply()
        }
        Err(error) => {
            tracing::warn!(%error, "a message is put aside");
            Reply::DeadLetter
        }
    }
}

async fn answer(message: &Message, reply: Reply) -> lapin::Result<()> {
    match reply {
        Reply::Ack => message.ack(BasicAckOptions::default()).await,
        Reply::Nack => {
            tokio::time::sleep(PAUSE).await;
            let requeue = BasicNackOptions {
                requeue: true,
                ..BasicNackOptions::default()
            };
            message.nack(requeue).await
        }
        Reply::DeadLetter => message.reject(BasicRejectOptions { requeue: false }).await,
    }?;
    Ok(())
}
