//! Functions that cannot have an attribute.
#![allow(unused)]

use rowlock_macros::{idempotent, locked};

type Answer = Result<(), ()>;
struct Shop;

#[locked(name = "a")]
fn no_async(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a")]
async fn no_result(rowlock: Shop) {}

#[locked(name = "a")]
async fn another_result(rowlock: Shop) -> u32 {
    7
}

#[locked(name = "a")]
async fn an_alias_that_hides_it(rowlock: Shop) -> Answer {
    Ok(())
}

#[idempotent(scope = "a", key = "b")]
async fn an_option(rowlock: Shop) -> Option<u32> {
    None
}

#[locked(name = "a")]
struct NoFunction;

trait NoBody {
    #[locked(name = "a")]
    async fn no_body(&self) -> Result<(), ()>;
}

#[locked(name = "a")]
async fn no_client(shop: Shop) -> Result<(), ()> {
    Ok(())
}

impl Shop {
    #[idempotent(scope = "a", key = "b")]
    async fn no_client_and_no_self(shop: Shop) -> Result<(), ()> {
        Ok(())
    }
}

#[idempotent(scope = "a", key = "b")]
async fn an_argument_without_a_name(rowlock: Shop, _: u32) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "b")]
async fn an_argument_in_parts(rowlock: Shop, (one, _): (u32, u32)) -> Result<(), ()> {
    Ok(())
}

fn main() {}
