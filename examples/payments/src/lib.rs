//! A payment server that charges once, whatever happens: [`server`] is the shop, with payments and orders on [`database`];
//! [`gateway`] is the payment provider.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "an example: its command and its tests are all that calls it"
)]

pub mod database;
pub mod gateway;
pub mod limits;
mod order;
mod payment;
mod problem;
pub mod server;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
