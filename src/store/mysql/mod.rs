//! MySQL and MariaDB: a JSON array carries a batch, a locking derived table passes locked rows over.

mod connect;
mod fault;
mod lease;
mod schema;
mod transaction;

pub(crate) use connect::MySql;
pub(crate) use fault::kind as fault_kind;
pub(crate) use schema::runner;

use std::time::Duration;

use sqlx::MySqlConnection;
use uuid::Uuid;

use crate::Name;
use crate::migrate::MigrateFault;
use crate::store::fault::Fault;
use crate::store::{
    Applied, Freed, LockRow, PinAsk, Pinned, ReleaseAsk, RenewAsk, Renewed, Server, Store, TakeAsk,
    Taken, Told, TxAsk, TxTaken, TxWaited,
};

impl Store for MySqlConnection {
    async fn server(&mut self) -> Result<Server, Fault> {
        Ok(connect::server(self).await?)
    }

    async fn schema_history(&mut self) -> Result<Option<Vec<Applied>>, Fault> {
        Ok(schema::history(self).await?)
    }

    async fn migrate(&mut self) -> Result<Vec<String>, MigrateFault> {
        schema::migrate(self).await
    }

    async fn database_id(&mut self) -> Result<Uuid, Fault> {
        Ok(schema::database_id(self).await?)
    }

    async fn lease_take(&mut self, asks: &[TakeAsk]) -> Result<Vec<Taken>, Fault> {
        Ok(lease::take(self, asks).await?)
    }

    async fn lease_renew(&mut self, asks: &[RenewAsk]) -> Result<Vec<Renewed>, Fault> {
        Ok(lease::renew(self, asks).await?)
    }

    async fn lease_release(&mut self, asks: &[ReleaseAsk]) -> Result<Vec<Freed>, Fault> {
        Ok(lease::release(self, asks).await?)
    }

    async fn lease_force_release(
        &mut self,
        name: &Name,
        _patience: Duration,
    ) -> Result<Option<LockRow>, Fault> {
        Ok(lease::force_release(self, name).await?)
    }

    async fn lock_inspect(&mut self, name: &Name) -> Result<Option<LockRow>, Fault> {
        Ok(lease::inspect(self, name).await?)
    }

    async fn lock_list(&mut self) -> Result<Vec<LockRow>, Fault> {
        Ok(lease::list(self).await?)
    }

    async fn lock_row(&mut self, name: &Name, make: bool) -> Result<Option<LockRow>, Fault> {
        Ok(lease::row(self, name, make).await?)
    }

    async fn tx_pin(&mut self, ask: &PinAsk) -> Result<Told<Pinned>, Fault> {
        transaction::pin(self, ask).await
    }

    async fn tx_take(&mut self, asks: &[TxAsk]) -> Result<Told<TxTaken>, Fault> {
        transaction::take(self, asks).await
    }

    async fn tx_wait(
        &mut self,
        names: &[Name],
        limit: Option<Duration>,
    ) -> Result<TxWaited, Fault> {
        transaction::wait(self, names, limit).await
    }

    async fn tx_row(&mut self, name: &Name) -> Result<Told<Option<LockRow>>, Fault> {
        transaction::row(self, name).await
    }
}
