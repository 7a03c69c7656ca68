//! rowlock, as an application uses it.

use async_trait::async_trait;
use rowlock::{Lock, ReleaseOutcome, Rowlock};

use crate::Failure;
use crate::locking::{Contender, Held};

pub(crate) struct Client {
    rowlock: Rowlock,
}

/// Makes the tables.
pub(crate) async fn prepare(url: &str) -> Result<(), Failure> {
    Rowlock::connect(url).await?;
    Ok(())
}

impl Client {
    pub(crate) async fn connect(url: &str) -> Result<Self, Failure> {
        let rowlock = Rowlock::connect(url).await?;
        Ok(Self { rowlock })
    }

    /// The lock with the settings of this contender. A contender with other settings differs only here.
    fn lock(&self, name: &str) -> Lock {
        self.rowlock.lock(name)
    }
}

#[async_trait]
impl Contender for Client {
    async fn acquire(&self, _task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        Ok(Box::new(self.lock(name).acquire().await?))
    }
}

#[async_trait]
impl Held for rowlock::Held {
    async fn release(self: Box<Self>) -> Result<(), Failure> {
        match rowlock::Held::release(&self).await? {
            ReleaseOutcome::Released => Ok(()),
            other => Err(format!("the release of {} found {other:?}", self.name()).into()),
        }
    }
}
