use crate::model::Name;
use crate::store::fault::Fault;
use crate::store::permit::{PermitAsk, PermitStore, PermitsPassed, Resized, WeighAsk, Weighed};
use crate::store::queue::{Joined, LookAsk, Looked, PassAsk};
use async_trait::async_trait;
use sqlx::MySqlConnection;
#[async_trait]
impl PermitStore for MySqlConnection {
    async fn permit_join(&mut self, _: &PermitAsk) -> Result<Joined, Fault> {
        unimplemented!()
    }
    async fn permit_pass(&mut self, _: &PassAsk) -> Result<PermitsPassed, Fault> {
        unimplemented!()
    }
    async fn permit_look(&mut self, _: &[LookAsk]) -> Result<Vec<Looked>, Fault> {
        unimplemented!()
    }
    async fn permit_weigh(&mut self, _: &WeighAsk) -> Result<Weighed, Fault> {
        unimplemented!()
    }
    async fn permit_resize(&mut self, _: &Name, _: u32) -> Result<Resized, Fault> {
        unimplemented!()
    }
}
