//! Redis: one server, so no Redlock. By hand (SET NX PX, and a script that compares and deletes), and with the crate
//! rslock.

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};
use rslock::{LockGuard, LockManager};
use uuid::Uuid;

use super::TTL;
use super::patience::Patience;
use crate::Failure;
use crate::locking::{Contender, Held};

/// One connection carries the commands of all tasks.
pub(crate) struct Client {
    connection: MultiplexedConnection,
    release: Script,
}

impl Client {
    pub(crate) async fn connect(url: &str) -> Result<Self, Failure> {
        // By default a command fails after half a second.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url)?;
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let release = Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
        );
        Ok(Self {
            connection,
            release,
        })
    }
}

struct Lock {
    connection: MultiplexedConnection,
    release: Script,
    name: String,
    token: Uuid,
}

#[async_trait]
impl Contender for Client {
    async fn acquire(&self, _task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        let mut connection = self.connection.clone();
        let token = Uuid::new_v4();
        let ttl = u64::try_from(TTL.as_millis())?;
        let mut set = redis::cmd("SET");
        set.arg(name)
            .arg(&token.as_bytes()[..])
            .arg("NX")
            .arg("PX")
            .arg(ttl);
        let mut patience = Patience::new();
        loop {
            let answer: Option<String> = set.query_async(&mut connection).await?;
            if answer.is_some() {
                break;
            }
            patience.pause().await;
        }
        Ok(Box::new(Lock {
            connection,
            release: self.release.clone(),
            name: name.to_owned(),
            token,
        }))
    }
}

#[async_trait]
impl Held for Lock {
    async fn release(mut self: Box<Self>) -> Result<(), Failure> {
        let mut script = self.release.prepare_invoke();
        script.key(&self.name).arg(&self.token.as_bytes()[..]);
        let deleted: u32 = script.invoke_async(&mut self.connection).await?;
        if deleted == 1 {
            Ok(())
        } else {
            Err(format!("{} was not held at its release", self.name).into())
        }
    }
}

/// The crate rslock, as it comes.
pub(crate) struct Rslock {
    manager: LockManager,
}

impl Rslock {
    pub(crate) fn connect(url: &str) -> Result<Self, Failure> {
        let client = redis::Client::open(url)?;
        let manager = LockManager::from_clients(vec![client]);
        Ok(Self { manager })
    }
}

#[async_trait]
impl Contender for Rslock {
    async fn acquire(&self, _task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        Ok(Box::new(self.manager.acquire(name, TTL).await?))
    }
}

#[async_trait]
impl Held for LockGuard {
    /// rslock compares the owner before it deletes, but does not tell the result.
    async fn release(self: Box<Self>) -> Result<(), Failure> {
        LockGuard::release(*self).await;
        Ok(())
    }
}
