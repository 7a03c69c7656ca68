//! The servers: [`server`] for the shop, with [`payment`] and [`order`] on [`database`], and [`gateway`] for the payment
//! provider.

pub(crate) mod database;
pub(crate) mod gateway;
pub(crate) mod limits;
mod order;
mod payment;
mod problem;
pub(crate) mod server;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
