//! ZooKeeper: the recipe of its manual. Each holder or waiter has an ephemeral, sequential node below the name; the
//! first node holds the lock, and a waiter watches only the node before its own.
//! <https://zookeeper.apache.org/doc/r3.8.0/recipes.html#sc_recipes_Locks>

use async_trait::async_trait;
use zookeeper_client::{Acls, CreateMode, Error};

use crate::Failure;
use crate::locking::{Contender, Held};

const ROOT: &str = "/race";
const NODE: &str = "n-";

/// One session carries the requests of all tasks.
pub(crate) struct Client {
    session: zookeeper_client::Client,
}

impl Client {
    pub(crate) async fn connect(address: &str) -> Result<Self, Failure> {
        let session = zookeeper_client::Client::connect(address).await?;
        make_folder(&session, ROOT).await?;
        Ok(Self { session })
    }

    /// Makes the node of a holder or waiter, and returns its name.
    async fn join(&self, folder: &str) -> Result<String, Failure> {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let node = format!("{folder}/{NODE}");
        loop {
            match self.session.create(&node, b"", &options).await {
                Ok((_, sequence)) => return Ok(format!("{NODE}{sequence}")),
                Err(Error::NoNode) => make_folder(&self.session, folder).await?,
                Err(other) => return Err(other.into()),
            }
        }
    }
}

async fn make_folder(session: &zookeeper_client::Client, path: &str) -> Result<(), Failure> {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    match session.create(path, b"", &options).await {
        Ok(_) | Err(Error::NodeExists) => Ok(()),
        Err(other) => Err(other.into()),
    }
}

#[async_trait]
impl Contender for Client {
    async fn acquire(&self, _task: u32, name: &str) -> Result<Box<dyn Held>, Failure> {
        let folder = format!("{ROOT}/{name}");
        let own = self.join(&folder).await?;
        loop {
            let nodes = self.session.list_children(&folder).await?;
            if !nodes.contains(&own) {
                return Err(format!("the node of a waiter for {name} is gone").into());
            }
            // The numbers have leading zeros, so they sort as texts.
            let Some(before) = nodes.into_iter().filter(|node| *node < own).max() else {
                let node = format!("{folder}/{own}");
                let session = self.session.clone();
                return Ok(Box::new(Lock { session, node }));
            };
            let before = format!("{folder}/{before}");
            match self.session.get_and_watch_data(&before).await {
                Ok((_, _, watcher)) => drop(watcher.changed().await),
                Err(Error::NoNode) => {}
                Err(other) => return Err(other.into()),
            }
        }
    }
}

struct Lock {
    session: zookeeper_client::Client,
    node: String,
}

#[async_trait]
impl Held for Lock {
    /// Fails if the node is gone.
    async fn release(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.session.delete(&self.node, None).await?)
    }
}
