//! Options that are missing, unknown, given twice, or of another form.
#![allow(unused)]

use rowlock_macros::{idempotent, job, locked};

struct Shop;

#[locked]
async fn none(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(ttl = "30s")]
async fn no_name(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[job(name = "a")]
async fn no_time(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(key = "b")]
async fn no_scope(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a")]
async fn no_key(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", time = "30s")]
async fn unknown(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", skip(shop))]
async fn of_the_other_attribute(rowlock: Shop, shop: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", ttl = "30s", name = "b")]
async fn twice(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked("a")]
async fn only_a_value(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name)]
async fn no_value(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name("a"))]
async fn a_list_of_literals(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name(rowlock))]
async fn a_list(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = NAME)]
async fn no_string(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", ttl = 30)]
async fn a_number(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", guard = "lease")]
async fn a_guard_in_quotes(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "b", skip = shop)]
async fn no_list(rowlock: Shop, shop: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "b", skip(shops))]
async fn skips_no_argument(rowlock: Shop, shop: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "b", skip(shop, shop))]
async fn skips_twice(rowlock: Shop, shop: Shop) -> Result<(), ()> {
    Ok(())
}

#[job(name = "j", at_least_for = "0s")]
async fn may_run_twice(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[job(name = "j", at_least_for = "5s", at_most_for = "1s")]
async fn longer_than_it_may(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

fn main() {}
