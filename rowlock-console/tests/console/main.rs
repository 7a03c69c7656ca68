//! The console, over real sockets: what its pages show, what they refuse, and what they cost.
//!
//! | promise | tests |
//! | --- | --- |
//! | each page shows what the database has | `pages::*` |
//! | what pages say: numbers, empty lists, filters | `wording::*` |
//! | titles, menus, links, and the page after a login | `ways::*` |
//! | it works where it is nested | `pages::a_console_can_be_nested` |
//! | who may see it and who may act | `access::*` |
//! | hosts, origins, form tokens, headers | `access::*` |
//! | each action shows what it will do, asks once more, needs a reason and is logged | `actions::*` |
//! | it is done once, to whom was shown, within its bounds | `refused::*` |
//! | what others have written is text | `hostile::*` |
//! | no input makes it fail | `fuzz::*` |
//! | one reader for all who look, none when nobody looks; it outlives the database | `live::*` |
#![allow(missing_docs, reason = "tests are named, not documented")]

mod access;
mod actions;
mod browser;
mod fuzz;
mod hostile;
mod live;
mod log;
mod pages;
mod refused;
mod server;
mod ways;
mod wording;
