//! Names, scopes and keys.
#![allow(unused)]

use rowlock_macros::{idempotent, locked};

struct Shop;

#[locked(name = "")]
async fn empty(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€{id}")]
async fn too_long(rowlock: Shop, id: u64) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "a\0b")]
async fn a_nul(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "stock:{ident}")]
async fn no_argument(rowlock: Shop, id: u64, (one, two): (u64, u64)) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "stock:{id}", client = Shop)]
async fn no_argument_at_all() -> Result<(), ()> {
    Ok(())
}

#[locked(name = "stock:{self.id}")]
async fn no_self(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

impl Shop {
    #[locked(name = "stock:{id}")]
    async fn a_field_without_self(&self) -> Result<(), ()> {
        Ok(())
    }
}

#[locked(name = "stock:{}")]
async fn no_placeholder(rowlock: Shop, id: u64) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "stock:{id:>5}")]
async fn a_format(rowlock: Shop, id: u64) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "stock:{id.to_string()}")]
async fn a_call(rowlock: Shop, id: u64) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "stock:{id")]
async fn not_closed(rowlock: Shop, id: u64) -> Result<(), ()> {
    Ok(())
}

#[locked(name = "stock:id}")]
async fn not_opened(rowlock: Shop, id: u64) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "", key = "b")]
async fn an_empty_scope(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "http:{user}", key = "b")]
async fn a_scope_of_http(rowlock: Shop, user: u64) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "")]
async fn an_empty_key(rowlock: Shop) -> Result<(), ()> {
    Ok(())
}

#[idempotent(scope = "a", key = "{order.number}")]
async fn a_key_without_its_argument(rowlock: Shop, user: u64) -> Result<(), ()> {
    Ok(())
}

fn main() {}
