//! A payment server that charges each order once. [`server`] is the shop, with payments and orders in a [`database`].
//! [`gateway`] is the payment provider.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "an example: only its command and its tests call it"
)]

pub mod database;
pub mod gateway;
pub mod limits;
mod order;
mod payment;
mod problem;
pub mod server;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
