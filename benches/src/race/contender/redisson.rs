//! The lock of Redisson, the client of Redis for Java, as its manual and its scripts describe it: a script takes the
//! name or tells how long the holder may keep it; the release publishes a message, which wakes one waiter of each
//! client that has subscribed to the name. There is no queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, PushInfo, PushKind, Script};
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

use super::TTL;
use crate::Failure;
use crate::locking::{Contender, Held};

/// Takes the name for a task and a time, or tells its holder's time in milliseconds. (Redisson counts how often a
/// thread holds it; here each task holds it once.)
const TAKE: &str = "
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return nil
end
return redis.call('PTTL', KEYS[1])";

/// Releases the name, and tells those who wait.
const RELEASE: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', KEYS[2], '0')
end
return 1";

/// What the waiters of this process wait for, by the channel: a permit for each message.
type Latches = Arc<Mutex<HashMap<String, Arc<Semaphore>>>>;

/// One connection carries the commands of all tasks, and the messages.
pub(crate) struct Client {
    connection: MultiplexedConnection,
    latches: Latches,
    id: Uuid,
    take: Script,
    release: Script,
}

impl Client {
    pub(crate) async fn connect(url: &str) -> Result<Self, Failure> {
        let (sender, messages) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_push_sender(sender);
        let client = redis::Client::open(format!("{url}?protocol=resp3"))?;
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let latches = Latches::default();
        tokio::spawn(listen(messages, Arc::clone(&latches)));
        Ok(Self {
            connection,
            latches,
            id: Uuid::new_v4(),
            take: Script::new(TAKE),
            release: Script::new(RELEASE),
        })
    }

    /// What tells the waiters of this process that the name was released. Subscribes to the name at first.
    async fn latch(&self, channel: &str) -> Result<Arc<Semaphore>, Failure> {
        let known = || {
            let latches = self.latches.lock().unwrap_or_else(PoisonError::into_inner);
            latches.get(channel).cloned()
        };
        if let Some(latch) = known() {
            return Ok(latch);
        }
        self.connection.clone().subscribe(channel).await?;
        let mut latches = self.latches.lock().unwrap_or_else(PoisonError::into_inner);
        let latch = latches
            .entry(channel.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(0)));
        Ok(Arc::clone(latch))
    }
}

/// Wakes a waiter for each message.
async fn listen(mut messages: mpsc::UnboundedReceiver<PushInfo>, latches: Latches) {
    while let Some(message) = messages.recv().await {
        if message.kind != PushKind::Message {
            continue;
        }
        let channel = message
            .data
            .into_iter()
            .next()
            .map(String::from_redis_value);
        let Some(Ok(channel)) = channel else {
            continue;
        };
        let latches = latches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(latch) = latches.get(&channel) {
            latch.add_permits(1);
        }
    }
}

struct Lock {
    connection: MultiplexedConnection,
    release: Script,
    name: String,
    channel: String,
    holder: String,
}

#[async_trait]
impl Contender for Client {
    async fn acquire(&self, task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        let mut connection = self.connection.clone();
        let holder = format!("{}:{task}", self.id);
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let ttl = u64::try_from(TTL.as_millis())?;
        let mut take = self.take.prepare_invoke();
        take.key(name).arg(&holder).arg(ttl);
        let mut left: Option<u64> = take.invoke_async(&mut connection).await?;
        if left.is_some() {
            let latch = self.latch(&channel).await?;
            left = take.invoke_async(&mut connection).await?;
            while let Some(milliseconds) = left {
                let told =
                    tokio::time::timeout(Duration::from_millis(milliseconds), latch.acquire());
                if let Ok(permit) = told.await {
                    permit?.forget();
                }
                left = take.invoke_async(&mut connection).await?;
            }
        }
        Ok(Box::new(Lock {
            connection,
            release: self.release.clone(),
            name: name.to_owned(),
            channel,
            holder,
        }))
    }
}

#[async_trait]
impl Held for Lock {
    async fn release(mut self: Box<Self>) -> Result<(), Failure> {
        let mut script = self.release.prepare_invoke();
        script.key(&self.name).key(&self.channel).arg(&self.holder);
        let released: u32 = script.invoke_async(&mut self.connection).await?;
        if released == 1 {
            Ok(())
        } else {
            Err(format!("{} was not held at its release", self.name).into())
        }
    }
}
