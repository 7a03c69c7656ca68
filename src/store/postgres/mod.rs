//! PostgreSQL: `unnest` arrays carry a batch, `FOR UPDATE SKIP LOCKED` passes locked rows over.

mod connect;
mod fault;
mod lease;
mod schema;

pub(crate) use connect::Postgres;
pub(crate) use fault::kind as fault_kind;
pub(crate) use schema::runner;

use sqlx::PgConnection;

use std::time::Duration;

use crate::Name;
use crate::migrate::MigrateFault;
use crate::store::fault::Fault;
use crate::store::{
    Applied, Freed, LockRow, ReleaseAsk, RenewAsk, Renewed, Server, Store, TakeAsk, Taken,
};

impl Store for PgConnection {
    async fn server(&mut self) -> Result<Server, Fault> {
        Ok(connect::server(self).await?)
    }

    async fn schema_history(&mut self) -> Result<Option<Vec<Applied>>, Fault> {
        Ok(schema::history(self).await?)
    }

    async fn migrate(&mut self) -> Result<Vec<String>, MigrateFault> {
        schema::migrate(self).await
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
        patience: Duration,
    ) -> Result<Option<LockRow>, Fault> {
        Ok(lease::force_release(self, name, patience).await?)
    }

    async fn lock_inspect(&mut self, name: &Name) -> Result<Option<LockRow>, Fault> {
        Ok(lease::inspect(self, name).await?)
    }

    async fn lock_list(&mut self) -> Result<Vec<LockRow>, Fault> {
        Ok(lease::list(self).await?)
    }
}
