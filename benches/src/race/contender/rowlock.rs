//! rowlock, as an application uses it.

use std::time::Duration;

use async_trait::async_trait;
use rowlock::{Lock, Rowlock};

use crate::Failure;
use crate::locking::{Contender, Held};

pub(crate) struct Client {
    rowlock: Rowlock,
    linger: Option<Duration>,
}

/// Makes the tables.
pub(crate) async fn prepare(url: &str) -> Result<(), Failure> {
    Rowlock::connect(url).await?;
    Ok(())
}

impl Client {
    /// `linger`: the leases of this contender linger.
    pub(crate) async fn connect(url: &str, linger: Option<Duration>) -> Result<Self, Failure> {
        let rowlock = Rowlock::connect(url).await?;
        Ok(Self { rowlock, linger })
    }

    /// The lock with the settings of this contender. A contender with other settings differs only here.
    fn lock(&self, name: &str) -> Lock {
        let lock = self.rowlock.lock(name);
        match self.linger {
            Some(linger) => lock.linger(linger),
            None => lock,
        }
    }
}

#[async_trait]
impl Contender for Client {
    async fn acquire(&self, _task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        Ok(Box::new(self.lock(name).acquire().await?))
    }

    async fn leave(&self) {
        self.rowlock.flush().await;
    }
}

#[async_trait]
impl Held for rowlock::Held {
    async fn release(self: Box<Self>) -> Result<(), Failure> {
        Ok(rowlock::Held::release(&self).await?)
    }
}
