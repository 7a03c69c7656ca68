//! The HTTP layer for actix-web, over real sockets: the same tests as for axum, from the same files (`tests/http`).
//!
//! What is left out is axum's own (routers that hide a prefix, its extractors, responses with trailers, which
//! actix-web cannot send) or hyper's (clients that close their half).
#![allow(missing_docs, reason = "tests are named, not documented")]

#[path = "../http/bodies.rs"]
mod bodies;
#[path = "../http/drain.rs"]
mod drain;
#[path = "../http/duplicates.rs"]
mod duplicates;
mod extract;
#[path = "../http/failures.rs"]
mod failures;
#[path = "../http/finality.rs"]
mod finality;
#[path = "../http/fingerprints.rs"]
mod fingerprints;
mod framework;
#[path = "../http/hooks.rs"]
mod hooks;
#[path = "../http/keys.rs"]
mod keys;
#[path = "../http/keys_in_bodies.rs"]
mod keys_in_bodies;
#[path = "../http/limits.rs"]
mod limits;
#[path = "../http/raw.rs"]
mod raw;
#[path = "../http/replays.rs"]
mod replays;
#[path = "../http/responses.rs"]
mod responses;
#[path = "../http/server.rs"]
mod server;
#[path = "../http/shop.rs"]
mod shop;
#[path = "../http/stored.rs"]
mod stored;
#[path = "../http/transactions.rs"]
mod transactions;
