//! Grants every name to everyone. With it, a test sees that the referee works.

use async_trait::async_trait;

use crate::Failure;
use crate::locking::{Contender, Held};

#[derive(Debug)]
pub(crate) struct Client;

#[async_trait]
impl Contender for Client {
    async fn acquire(&self, _task: u32, _name: &str) -> Result<Box<dyn Held>, Failure> {
        Ok(Box::new(Self))
    }
}

#[async_trait]
impl Held for Client {
    async fn release(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}
