//! Durations: their form, and one step beyond each bound. (rowlock's contract tests use the bounds themselves.)
#![allow(unused)]

use rowlock_macros::{idempotent, locked};

struct Shop;

#[locked(name = "a", ttl = "30")]
async fn no_unit(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", ttl = "1.5s")]
async fn no_whole_number(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", ttl = "99ms")]
async fn a_short_ttl(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", ttl = "86400001ms")]
async fn a_long_ttl(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", wait = "31622400001ms")]
async fn a_long_wait(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", max_hold = "99ms")]
async fn a_short_max_hold(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a", max_hold = "31622400001ms")]
async fn a_long_max_hold(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "b", lease = "99ms")]
async fn a_short_lease(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "b", lease = "86400001ms")]
async fn a_long_lease(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "b", retention = "999ms")]
async fn a_short_retention(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "b", retention = "316224000001ms")]
async fn a_long_retention(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "b", wait = "18446744073709551615h")]
async fn a_long_wait_for_an_attempt(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

fn main() {}
